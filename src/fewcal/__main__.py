"""`python -m fewcal`."""

from fewcal.cli import main

if __name__ == "__main__":
    main()
