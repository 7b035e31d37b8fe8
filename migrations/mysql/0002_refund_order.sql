-- The shop's refunds, written as PROCESSING before WeChat Pay is asked. A notice moves status.
-- refund_id is the shop's to fill: its index would make a notice wait for the shop's gap locks.
-- refund_order_no: the commit locks refunds by it
-- refund_order_refund_id: one row for each of WeChat Pay's refunds
CREATE TABLE refund_order (
    id BIGINT NOT NULL AUTO_INCREMENT,
    mchid VARCHAR(32) NOT NULL,
    out_refund_no VARCHAR(64) NOT NULL,
    refund_id VARCHAR(64) NULL,
    out_trade_no VARCHAR(64) NOT NULL,
    transaction_id VARCHAR(64) NULL,
    refund_fen BIGINT NOT NULL,
    total_fen BIGINT NOT NULL,
    currency VARCHAR(16) NOT NULL DEFAULT 'CNY',
    status VARCHAR(16) NOT NULL DEFAULT 'PROCESSING',
    success_at_ms BIGINT NULL,
    created_at_ms BIGINT NOT NULL,
    updated_at_ms BIGINT NOT NULL,
    PRIMARY KEY (id, mchid),
    UNIQUE KEY refund_order_no (mchid, out_refund_no),
    UNIQUE KEY refund_order_refund_id (mchid, refund_id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
