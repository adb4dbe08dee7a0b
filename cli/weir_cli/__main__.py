"""`python -m weir_cli` is `weir`."""

from weir_cli.main import run

if __name__ == "__main__":
    run()
