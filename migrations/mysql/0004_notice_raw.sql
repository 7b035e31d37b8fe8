-- Deliveries as received, apart from notice so that a change of state does not log the body again.
-- notice_raw_notice: a person looks at what arrived
CREATE TABLE notice_raw (
    id BIGINT NOT NULL AUTO_INCREMENT,
    mchid VARCHAR(32) NOT NULL,
    notice_id BIGINT NOT NULL,
    headers MEDIUMBLOB NOT NULL,
    body MEDIUMBLOB NOT NULL,
    received_at_ms BIGINT NOT NULL,
    PRIMARY KEY (id, mchid),
    KEY notice_raw_notice (notice_id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
