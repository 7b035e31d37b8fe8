-- The shop's orders. The shop writes them; the flush keeps refunded_fen and refund_status.
-- orders_no: the flush locks orders by it
CREATE TABLE orders (
    id BIGINT NOT NULL AUTO_INCREMENT,
    mchid VARCHAR(32) NOT NULL,
    out_trade_no VARCHAR(64) NOT NULL,
    transaction_id VARCHAR(64) NULL,
    total_fen BIGINT NOT NULL,
    refunded_fen BIGINT NOT NULL DEFAULT 0,
    refund_status VARCHAR(16) NOT NULL DEFAULT 'NONE',
    status VARCHAR(32) NOT NULL DEFAULT 'PAID',
    currency VARCHAR(16) NOT NULL DEFAULT 'CNY',
    created_at_ms BIGINT NOT NULL,
    updated_at_ms BIGINT NOT NULL,
    PRIMARY KEY (id, mchid),
    UNIQUE KEY orders_no (mchid, out_trade_no)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
