-- The shop's orders. The shop writes them; the flush keeps refunded_fen and refund_status.
CREATE TABLE orders (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    mchid TEXT NOT NULL,
    out_trade_no TEXT NOT NULL,
    transaction_id TEXT,
    total_fen INTEGER NOT NULL,
    refunded_fen INTEGER NOT NULL DEFAULT 0,
    refund_status TEXT NOT NULL DEFAULT 'NONE',
    status TEXT NOT NULL DEFAULT 'PAID',
    currency TEXT NOT NULL DEFAULT 'CNY',
    created_at_ms INTEGER NOT NULL,
    updated_at_ms INTEGER NOT NULL
) STRICT;
-- orders_no: the flush locks orders by it
CREATE UNIQUE INDEX orders_no ON orders (mchid, out_trade_no);
