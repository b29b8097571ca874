"""Files: what is written to the disk is complete or absent, and who writes it is known.

    atomic        a file or a folder under a temporary name, which is renamed when it is complete; checksums
    lock          one training at a time in a run folder
    cache         the folder of what was fetched and prepared: sealing and removing it, errors that say what to do
    archives      files of packages of the package index, fetched by checksum from where pip looks; nothing is run
    json_files    JSON that somebody else may have written, bounded in size and depth
    kept_scores   scores of samples that are not computed twice
    progress      what long work reports: messages and how much is done
    bars          work in progress as bars, on a terminal or in a notebook

What must hold: after a crash at any moment, a file has its old or its new content.
"""

from typing import Literal

DocumentRule = Literal["auto", "lines"]
