"""The figures that claims quote stand in the tables that they name, by the numbers of the index."""

from __future__ import annotations

import re

import pytest

from duality.papers.duo.page import FIGURES, TABLES
from duality.papers.duo.reproduce.claims import Claim, read_domains

CLAIMS = {each.name: each for domain in read_domains("full") for each in domain.read_claims()}


def named_tables(claim: Claim) -> set[int]:
    """The tables that a claim names, and those that print what its figures draw."""
    tables = {int(number) for part in re.findall(r"Tables? ([\d and]+)", claim.where) for number in part.split(" and ")}
    figures = {int(number) for number in re.findall(r"Figure (\d+)", claim.where)}
    return tables | {number for figure in figures for number in FIGURES[figure].tables}


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=list(CLAIMS))
def test_every_quoted_number_is_in_a_named_table(claim: Claim) -> None:
    quoted = {number for each in claim.comparisons for number in re.findall(r"\d+\.\d+", each.paper)}
    printed = {
        float(value)
        for number in named_tables(claim)
        for row in TABLES[number].rows
        for value in row.numbers
        if value != "-"
    }
    assert {float(number) for number in quoted} <= printed


def test_numbers_are_quoted() -> None:
    quoted = [
        name for name, claim in CLAIMS.items() if any(re.search(r"\d\.\d", each.paper) for each in claim.comparisons)
    ]
    assert len(quoted) >= 9
