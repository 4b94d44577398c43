"""The `pagefleet` command. Every command imports what it needs when it runs, so that `--help` stays instant."""
