"""``python -m passerelle`` is the same command as ``passerelle``."""

from passerelle.cli.main import main

if __name__ == "__main__":
    main()
