"""The operator: from an InferenceService to what runs."""
