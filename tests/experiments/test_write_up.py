import csv

import gains
import write_up
from recipe import as_csv


def test_results_page_shows_the_tables_of_the_csvs():
    page = write_up.PAGE.read_text(encoding="utf-8")
    assert write_up.filled(page, write_up.RESULTS) == page


def test_gains_table_follows_from_the_rows():
    with (write_up.RESULTS / "gains.csv").open(newline="", encoding="utf-8") as file:
        rows = [
            gains.Row(row["script"], int(row["seed"]), row["scheduler"], float(row["accuracy"]), ())
            for row in csv.DictReader(file)
        ]
    assert as_csv(gains.shown(rows)) == (write_up.RESULTS / "gains_paper.csv").read_text(encoding="utf-8")
