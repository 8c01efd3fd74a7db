"""`python -m harness`: the installed command, run by this interpreter."""

from harness.entry import main

if __name__ == "__main__":
    main()
