"""`python -m scripts.cli`: the command `grpo` for a process that must not depend on the PATH."""

from scripts.cli.app import main

if __name__ == "__main__":
    main()
