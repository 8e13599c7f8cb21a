"""Plain text tables."""

import pytest

from lmc_grouped.tools.tables import Align, format_table


def test_columns_are_as_wide_as_their_widest_cell_and_numbers_stand_right():
    table = format_table(
        ["name", "tokens"], [["a", "1,024"], ["longer", "7"]], [Align.LEFT, Align.RIGHT]
    )
    assert table.splitlines() == [
        "name    tokens",
        "------  ------",
        "a        1,024",
        "longer       7",
    ]


def test_a_table_without_rows_is_its_header():
    assert format_table(["a"], [], [Align.LEFT]).splitlines() == ["a", "-"]


def test_a_row_with_another_number_of_cells_is_refused():
    with pytest.raises(ValueError, match="a table row has 1 cells, the header has 2"):
        format_table(["a", "b"], [["x"]], [Align.LEFT, Align.LEFT])
