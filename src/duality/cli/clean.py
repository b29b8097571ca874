"""`duality data clean`: what the cache holds, and removing it."""

from __future__ import annotations


def clean(kind: str, yes: bool) -> int:
    """Show what the cache holds, of one kind or of all, and remove it if the user has said so."""
    from duality.files.atomic import readable_size
    from duality.files.cache import cache_folder
    from duality.files.cleaning import free, holdings

    root = cache_folder()
    found = holdings(root, kind)
    print(root)
    for holding in found:
        count = f"{len(holding.entries)} entr{'y' if len(holding.entries) == 1 else 'ies'}"
        writing = f"; {holding.in_progress} more being written" if holding.in_progress else ""
        print(f"{holding.kind:<11}{count:>12}  {readable_size(holding.num_bytes):>10}  {holding.title}{writing}")
    total = readable_size(sum(holding.num_bytes for holding in found))
    if yes:
        free(found)
        print(f"{total} removed; what is needed is fetched or made again")
        return 0
    print(f"{total} can be freed: it would be fetched or made again when it is needed")
    again = f"duality data clean {kind}".rstrip()
    one = "" if kind else "; one kind: duality data clean KIND --yes"
    print(f"remove it: {again} --yes{one}")
    return 0
