-- One row for each successful refund, never updated. Its unique key is the last guard against doubling.
-- refund_ledger_no: the flush finds what is booked already
-- refund_ledger_order: an order's refunds, to check its sum
CREATE TABLE refund_ledger (
    id BIGINT NOT NULL AUTO_INCREMENT,
    mchid VARCHAR(32) NOT NULL,
    out_refund_no VARCHAR(64) NOT NULL,
    out_trade_no VARCHAR(64) NOT NULL,
    refund_id VARCHAR(64) NULL,
    transaction_id VARCHAR(64) NULL,
    refund_fen BIGINT NOT NULL,
    payer_refund_fen BIGINT NULL,
    currency VARCHAR(16) NOT NULL,
    success_at_ms BIGINT NULL,
    notice_id BIGINT NOT NULL,
    created_at_ms BIGINT NOT NULL,
    PRIMARY KEY (id, mchid),
    UNIQUE KEY refund_ledger_no (mchid, out_refund_no),
    KEY refund_ledger_order (mchid, out_trade_no)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
