"""The command of lm-evaluation-harness with the model ``duality``: ``duality-lm-eval --model duality …``.

The harness finds only models of its own by name, and has no list of packages to look for others in. This command
registers ours and then calls the harness's own. All flags are the harness's; a user's mistake is one line on stderr and
exit code 2.
"""

from __future__ import annotations

import sys

from duality.extras import install_command


def main() -> int:
    """Register the model, and run the harness."""
    try:
        import lm_eval.__main__ as harness
    except ModuleNotFoundError as error:
        if error.name != "lm_eval":
            raise
        print(f"error: lm-eval is not installed: {install_command('eval')}", file=sys.stderr)
        return 2
    import duality.integrations.lm_eval  # noqa: F401  # which registers the model

    try:
        harness.cli_evaluate()
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
