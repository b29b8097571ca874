"""``python -m duality`` is the ``duality`` command."""

from duality.cli.main import script

if __name__ == "__main__":
    script()
