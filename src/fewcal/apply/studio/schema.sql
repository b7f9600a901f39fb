-- The tables of a project. `PRAGMA quick_check` looks at the checks as well: a value that cannot be is damage.
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL CHECK (typeof(value) = 'text'));
CREATE TABLE items (
  id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE CHECK (typeof(name) = 'text'),
  text TEXT CHECK (typeof(text) IN ('text', 'null')), named TEXT CHECK (typeof(named) IN ('text', 'null')),
  state TEXT NOT NULL CHECK (state IN ('waiting', 'ready', 'failed', 'gone')),
  error TEXT CHECK (typeof(error) IN ('text', 'null')),
  features BLOB CHECK (state != 'ready' OR typeof(features) = 'blob' AND length(features) > 0));
CREATE TABLE classes (
  id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE CHECK (typeof(name) = 'text'));
CREATE TABLE labels (
  turn INTEGER PRIMARY KEY AUTOINCREMENT, item INTEGER NOT NULL UNIQUE REFERENCES items (id),
  class INTEGER NOT NULL CHECK (typeof(class) = 'integer'));
CREATE TABLE history (
  id INTEGER PRIMARY KEY AUTOINCREMENT, edit TEXT NOT NULL CHECK (typeof(edit) = 'text'),
  undone INTEGER NOT NULL DEFAULT 0 CHECK (undone IN (0, 1)));
