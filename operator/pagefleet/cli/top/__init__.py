"""`pagefleet top`: every service of a cluster in one live table."""
