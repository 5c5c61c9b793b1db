"""`python -m pgq` is the command `pgq`."""

from pgq._cli import main

main()
