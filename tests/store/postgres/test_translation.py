from __future__ import annotations

import pytest

from store.postgres.translation import translate


@pytest.mark.parametrize(
    ("sqlite", "postgres"),
    [
        ("SELECT 1 WHERE a = ? AND b = ?", "SELECT 1 WHERE a = $1 AND b = $2"),
        ("a = :x OR b = :y OR c = :x", "a = $1 OR b = $2 OR c = $1"),
        ("a = '?' AND b = ':c' AND d LIKE '100 %'", "a = '?' AND b = ':c' AND d ILIKE '100 %'"),
        ("x'7b7d' AS request", r"'\x7b7d'::bytea AS request"),
        ("FROM a INDEXED BY a_b WHERE +a.c = 1", "FROM a WHERE a.c = 1"),
        ("a + b, c +d.e", "a + b, c d.e"),  # the store writes a sum with spaces
        ("c.user = 1, user", 'c."user" = 1, "user"'),
        ("c.key IS ?", "(c.key = $1 OR (c.key IS NULL AND $1 IS NULL))"),
        ("+c.user IS :user", '(c."user" = $1 OR (c."user" IS NULL AND $1 IS NULL))'),
        ("a.b IS c.d AND e IS NULL AND f IS NOT NULL", "a.b IS NOT DISTINCT FROM c.d AND e IS NULL AND f IS NOT NULL"),
        ("a CROSS JOIN b ON b.x = a.x", "a JOIN b ON b.x = a.x"),
        ("a CROSS JOIN b WHERE 1 = 1", "a CROSS JOIN b WHERE 1 = 1"),
        ("a CROSS JOIN json_each(?) w ON w.value = a.x", "a JOIN json_each($1) w ON w.value = a.x"),
        ("a CROSS JOIN (SELECT (1)) b\n ON b.x = 1", "a JOIN (SELECT (1)) b\n ON b.x = 1"),
        ("CAST(json_extract(a, '$[1]') AS INTEGER)", "to_integer(json_extract(a, '$[1]'))"),
        ("CAST(? AS TEXT), CAST(? AS REAL)", "to_text($1), CAST ($2 AS double precision)"),
        ("search MATCH :words", "search.words @@ search_query($1)"),
        ("SELECT seq FROM sqlite_sequence", "SELECT seq FROM counters"),
        ("x /* ORDER BY i.seq DESC */ LIMIT 1", "x ORDER BY i.seq DESC LIMIT 1"),
    ],
)
def test_a_text_for_sqlite_becomes_one_for_postgres(sqlite: str, postgres: str) -> None:
    assert translate(sqlite).text == postgres


def test_parameters_come_in_the_order_of_the_text() -> None:
    statement = translate("b = :second AND a = :first AND c = :second")
    assert statement.values({"first": 1, "second": 2, "third": 3}) == [2, 1]
    assert translate("a = ?").values([7]) == (7,)
    with pytest.raises(KeyError):
        statement.values({"first": 1})
