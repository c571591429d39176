-- What SQLite has and PostgreSQL has not, under SQLite's names and with its meaning. `search_path` has this schema first.
-- Each start of rlproxy defines them again; {collation} is one that knows the letters of all scripts.

CREATE OR REPLACE FUNCTION iif(condition boolean, yes anycompatible, no anycompatible) RETURNS anycompatible
LANGUAGE sql IMMUTABLE AS 'SELECT CASE WHEN condition THEN yes ELSE no END';

CREATE OR REPLACE FUNCTION max(a bigint, b bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS 'SELECT CASE WHEN a IS NULL OR b IS NULL THEN NULL ELSE greatest(a, b) END';
CREATE OR REPLACE FUNCTION max(a double precision, b double precision) RETURNS double precision
LANGUAGE sql IMMUTABLE AS 'SELECT CASE WHEN a IS NULL OR b IS NULL THEN NULL ELSE greatest(a, b) END';
CREATE OR REPLACE FUNCTION min(a double precision, b double precision) RETURNS double precision
LANGUAGE sql IMMUTABLE AS 'SELECT CASE WHEN a IS NULL OR b IS NULL THEN NULL ELSE least(a, b) END';

CREATE OR REPLACE FUNCTION substr(value text, first bigint, count bigint) RETURNS text
LANGUAGE sql IMMUTABLE AS 'SELECT pg_catalog.substr(value, first::integer, least(count, 2147483647 - first)::integer)';
CREATE OR REPLACE FUNCTION instr(value text, part text) RETURNS integer
LANGUAGE sql IMMUTABLE AS 'SELECT strpos(value, part)';
CREATE OR REPLACE FUNCTION instr(value bytea, part text) RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT position(convert_to(part, 'UTF8') IN value) $$;
CREATE OR REPLACE FUNCTION hex(value bytea) RETURNS text
LANGUAGE sql IMMUTABLE AS $$ SELECT upper(encode(value, 'hex')) $$;

-- CAST(… AS INTEGER) and CAST(… AS TEXT)
CREATE OR REPLACE FUNCTION to_integer(value bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS 'SELECT value';
CREATE OR REPLACE FUNCTION to_integer(value double precision) RETURNS bigint
LANGUAGE sql IMMUTABLE AS 'SELECT trunc(value)::bigint';
CREATE OR REPLACE FUNCTION to_integer(value text) RETURNS bigint
LANGUAGE sql IMMUTABLE AS 'SELECT trunc(value::numeric)::bigint';
CREATE OR REPLACE FUNCTION to_text(value text) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT value';
CREATE OR REPLACE FUNCTION to_text(value bytea) RETURNS text
LANGUAGE sql IMMUTABLE AS $$ SELECT convert_from(value, 'UTF8') $$;

-- JSON. A text of PostgreSQL has no NUL: rlproxy stores U+10FFFE in its place (store.postgres.values), and so does this.
CREATE OR REPLACE FUNCTION json_of(document text) RETURNS json LANGUAGE sql IMMUTABLE AS $$
    SELECT replace(document, '\u0000', U&'\+10FFFE')::json
$$;
CREATE OR REPLACE FUNCTION json_path_of(path text) RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
    SELECT regexp_split_to_array(regexp_replace(trim(LEADING '$' FROM path), '^\.|\]', '', 'g'), '[.\[]')
$$;
CREATE OR REPLACE FUNCTION json_extract(document text, path text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT json_of(document) #>> array_remove(json_path_of(path), '')
$$;
CREATE OR REPLACE FUNCTION json_each(document text) RETURNS TABLE (value text) LANGUAGE sql IMMUTABLE ROWS 20 AS $$
    SELECT json_array_elements_text(json_of(document))
$$;
CREATE OR REPLACE FUNCTION json_each(document text, path text) RETURNS TABLE (key text, value text)
LANGUAGE sql IMMUTABLE AS $$
    SELECT m.key, m.value FROM json_each_text(json_of(document) #> array_remove(json_path_of(path), '')) m
$$;
CREATE OR REPLACE FUNCTION json_append(elements jsonb, element anyelement) RETURNS jsonb
LANGUAGE sql IMMUTABLE AS 'SELECT elements || jsonb_build_array(element)';
CREATE OR REPLACE FUNCTION json_text(elements jsonb) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT elements::text';
CREATE OR REPLACE AGGREGATE json_group_array(anyelement) (
    sfunc = json_append, stype = jsonb, initcond = '[]', finalfunc = json_text);

-- Sums and means. A comparison is 1 or 0 to SQLite, and a sum of integers an integer.
CREATE OR REPLACE FUNCTION add_if(so_far bigint, value boolean) RETURNS bigint LANGUAGE sql IMMUTABLE AS
'SELECT CASE WHEN value IS NULL THEN so_far ELSE coalesce(so_far, 0) + value::integer END';
CREATE OR REPLACE AGGREGATE sum(boolean) (sfunc = add_if, stype = bigint);
CREATE OR REPLACE AGGREGATE sum(bigint) (sfunc = int8pl, stype = bigint);
CREATE OR REPLACE FUNCTION count_if(so_far double precision, value boolean) RETURNS double precision
LANGUAGE sql IMMUTABLE STRICT AS 'SELECT so_far + value::integer';
CREATE OR REPLACE AGGREGATE total(boolean) (sfunc = count_if, stype = double precision, initcond = '0');
CREATE OR REPLACE AGGREGATE total(double precision) (
    sfunc = float8pl, stype = double precision, initcond = '0');
CREATE OR REPLACE FUNCTION join_texts(so_far text, value text, separator text) RETURNS text LANGUAGE sql IMMUTABLE AS
'SELECT CASE WHEN value IS NULL THEN so_far ELSE concat(so_far || separator, value) END';
CREATE OR REPLACE AGGREGATE group_concat(text, text) (sfunc = join_texts, stype = text);

-- The search: words as FTS5's unicode61 makes them, without diacritics.
CREATE OR REPLACE FUNCTION search_words(value text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT regexp_replace(
        lower(regexp_replace(normalize(value, NFD), '[\u0300-\u036f]', '', 'g') COLLATE {collation}),
        '[^[:alnum:]]+', ' ', 'g')
$$;
CREATE OR REPLACE FUNCTION search_vector(value text) RETURNS tsvector LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(string_agg(format('''%s'':%s', left(w.word, 200), least(w.place, 16383)), ' '), '')::tsvector
    FROM regexp_split_to_table(search_words(value), ' ') WITH ORDINALITY AS w (word, place) WHERE w.word <> ''
$$;
-- Of "one" "two"*, as store.captured.inbox writes it: all of these, the words of one side by side, the last perhaps begun.
CREATE OR REPLACE FUNCTION search_query(query text) RETURNS tsquery LANGUAGE sql IMMUTABLE AS $$
    SELECT string_agg(p.phrase, ' & ')::tsquery FROM (
        SELECT (
            SELECT string_agg(format('''%s''', left(w.word, 200)), ' <-> ' ORDER BY w.place) || replace(m[2], '*', ':*')
            FROM regexp_split_to_table(search_words(m[1]), ' ') WITH ORDINALITY AS w (word, place) WHERE w.word <> ''
        ) AS phrase FROM regexp_matches(query, '"((?:[^"]|"")*)"(\*?)', 'g') AS m
    ) p
$$;
