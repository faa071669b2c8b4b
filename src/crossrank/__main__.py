"""``python -m crossrank`` is the command line."""

from crossrank.cli import main

if __name__ == "__main__":
    main()
