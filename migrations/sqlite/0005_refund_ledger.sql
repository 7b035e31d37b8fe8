-- One row for each successful refund, never updated. Its unique key is the last guard against doubling.
CREATE TABLE refund_ledger (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    mchid TEXT NOT NULL,
    out_refund_no TEXT NOT NULL,
    out_trade_no TEXT NOT NULL,
    refund_id TEXT,
    transaction_id TEXT,
    refund_fen INTEGER NOT NULL,
    payer_refund_fen INTEGER,
    currency TEXT NOT NULL,
    success_at_ms INTEGER,
    notice_id INTEGER NOT NULL,
    created_at_ms INTEGER NOT NULL
) STRICT;
-- refund_ledger_no: the flush finds what is booked already
CREATE UNIQUE INDEX refund_ledger_no ON refund_ledger (mchid, out_refund_no);
-- refund_ledger_order: an order's refunds, to check its sum
CREATE INDEX refund_ledger_order ON refund_ledger (mchid, out_trade_no);
