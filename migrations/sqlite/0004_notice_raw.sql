-- Deliveries as received, apart from notice so that a change of state does not log the body again.
CREATE TABLE notice_raw (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    mchid TEXT NOT NULL,
    notice_id INTEGER NOT NULL,
    headers BLOB NOT NULL,
    body BLOB NOT NULL,
    received_at_ms INTEGER NOT NULL
) STRICT;
-- notice_raw_notice: a person looks at what arrived
CREATE INDEX notice_raw_notice ON notice_raw (notice_id);
