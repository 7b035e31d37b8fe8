-- One row for each fact, however often it is delivered. Rows in `pending` are the outbox.
CREATE TABLE notice (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    provider TEXT NOT NULL,
    subject TEXT NOT NULL,
    mchid TEXT NOT NULL,
    digest BLOB NOT NULL,
    envelope_id TEXT NOT NULL,
    source TEXT NOT NULL,
    out_refund_no TEXT,
    out_trade_no TEXT,
    refund_id TEXT,
    transaction_id TEXT,
    status TEXT,
    refund_fen INTEGER,
    payer_refund_fen INTEGER,
    total_fen INTEGER,
    currency TEXT,
    success_at_ms INTEGER,
    state TEXT NOT NULL,
    reason TEXT,
    deliveries INTEGER NOT NULL DEFAULT 1,
    attempts INTEGER NOT NULL DEFAULT 0,
    due_at_ms INTEGER,
    received_at_ms INTEGER NOT NULL,
    updated_at_ms INTEGER NOT NULL
) STRICT;
-- notice_digest: the commit finds what is stored already; the first guard against doubling
CREATE UNIQUE INDEX notice_digest ON notice (mchid, digest);
-- notice_due: the relay reads what is due
CREATE INDEX notice_due ON notice (state, due_at_ms);
