"""What `pagefleet plan` reads and draws around the pure planner."""
