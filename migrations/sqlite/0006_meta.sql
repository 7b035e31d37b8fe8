-- Facts about the store itself, such as its epoch.
CREATE TABLE meta (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    value TEXT NOT NULL
) STRICT;
-- meta_name: each fact once
CREATE UNIQUE INDEX meta_name ON meta (name);
