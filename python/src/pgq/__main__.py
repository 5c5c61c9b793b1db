"""`python -m pgq` is the command `pgq`."""

from pgq._cli import main

if __name__ == "__main__":
    main()
