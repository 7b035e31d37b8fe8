-- One row for each fact, however often it is delivered. Rows in `pending` are the outbox.
-- notice_digest: the commit finds what is stored already; the first guard against doubling
-- notice_due: the relay reads what is due
CREATE TABLE notice (
    id BIGINT NOT NULL AUTO_INCREMENT,
    provider VARCHAR(16) NOT NULL,
    subject VARCHAR(16) NOT NULL,
    mchid VARCHAR(32) NOT NULL,
    digest BINARY(32) NOT NULL,
    envelope_id VARCHAR(128) NOT NULL,
    source VARCHAR(16) NOT NULL,
    out_refund_no VARCHAR(64) NULL,
    out_trade_no VARCHAR(64) NULL,
    refund_id VARCHAR(64) NULL,
    transaction_id VARCHAR(64) NULL,
    status VARCHAR(16) NULL,
    refund_fen BIGINT NULL,
    payer_refund_fen BIGINT NULL,
    total_fen BIGINT NULL,
    currency VARCHAR(16) NULL,
    success_at_ms BIGINT NULL,
    state VARCHAR(16) NOT NULL,
    reason VARCHAR(255) NULL,
    deliveries BIGINT NOT NULL DEFAULT 1,
    attempts BIGINT NOT NULL DEFAULT 0,
    due_at_ms BIGINT NULL,
    received_at_ms BIGINT NOT NULL,
    updated_at_ms BIGINT NOT NULL,
    PRIMARY KEY (id, mchid),
    UNIQUE KEY notice_digest (mchid, digest),
    KEY notice_due (state, due_at_ms)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
