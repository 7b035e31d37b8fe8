-- The shop's refunds, written as PROCESSING before WeChat Pay is asked. A notice moves status.
-- refund_id is the shop's to fill: its index would make a notice wait for the shop's gap locks.
CREATE TABLE refund_order (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    mchid TEXT NOT NULL,
    out_refund_no TEXT NOT NULL,
    refund_id TEXT,
    out_trade_no TEXT NOT NULL,
    transaction_id TEXT,
    refund_fen INTEGER NOT NULL,
    total_fen INTEGER NOT NULL,
    currency TEXT NOT NULL DEFAULT 'CNY',
    status TEXT NOT NULL DEFAULT 'PROCESSING',
    success_at_ms INTEGER,
    created_at_ms INTEGER NOT NULL,
    updated_at_ms INTEGER NOT NULL
) STRICT;
-- refund_order_no: the commit locks refunds by it
CREATE UNIQUE INDEX refund_order_no ON refund_order (mchid, out_refund_no);
-- refund_order_refund_id: one row for each of WeChat Pay's refunds
CREATE UNIQUE INDEX refund_order_refund_id ON refund_order (mchid, refund_id);
