"""Run the command as `python -m pagefleet.cli`."""

from pagefleet.cli.main import main

if __name__ == "__main__":
    main()
