"""python -m skipkv.cli: the same as the command skipkv."""

from skipkv.cli.app import main

main()
