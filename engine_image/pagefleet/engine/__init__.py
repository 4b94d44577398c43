"""pagefleet's engine: paged attention, one token-budget scheduler, an OpenAI server in front."""
