//! One row that the database refuses among many that it takes.

use refund_batcher::core::notice::reason;

use crate::support::stage::Stage;
use crate::support::{TestDatabase, books, refund_notice, shop_writes};

on_each_database!(
    a_ledger_row_that_is_refused_holds_up_nobody_else,
    a_refund_row_that_cannot_move_holds_up_nobody_else,
    a_notice_that_cannot_be_stored_is_not_acknowledged,
    a_waiting_fact_that_is_refused_goes_to_a_person,
    a_row_that_never_agrees_holds_up_nobody_else,
);

const REFUSED: &str = "this one is not to be written";

/// Makes the database refuse a write (`INSERT ON table` or so) of this refund.
async fn refuse(stage: &Stage, write: &str, out_refund_no: &str) {
    let text = if stage.db.url.starts_with("sqlite:") {
        format!(
            "CREATE TRIGGER refuse BEFORE {write} WHEN NEW.out_refund_no = '{out_refund_no}' \
             BEGIN SELECT RAISE(ABORT, '{REFUSED}'); END"
        )
    } else {
        format!(
            "CREATE TRIGGER refuse BEFORE {write} FOR EACH ROW IF NEW.out_refund_no = '{out_refund_no}' THEN \
             SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = '{REFUSED}'; END IF"
        )
    };
    stage.run(&text).await;
}

fn numbers() -> Vec<String> {
    (0..16).map(|n| format!("R{n}")).collect()
}

/// Whether it ended so for a reason that has the database's own words.
fn is_refused(row: &str, state: &str) -> bool {
    row.starts_with(&format!("{state} {}", reason::DATABASE)) && row.contains(REFUSED)
}

async fn a_ledger_row_that_is_refused_holds_up_nobody_else(db: TestDatabase) {
    // Aim: the others of its batch are booked; the one stays pending with its attempts counted, ends
    // dead with the database's words, and moves no money.
    // Method: a trigger refuses the ledger row of R7; 16 facts at once in one batch; let time pass.
    let stage = Stage::with(
        db,
        "[flush]\nworkers = 1\nwait_ms = 200\nattempts_max = 3\n",
    )
    .await;
    refuse(&stage, "INSERT ON refund_ledger", "R7").await;
    for number in numbers() {
        shop_writes(&stage.db.database, &number, 100, 300).await;
    }
    let notices: Vec<_> = numbers()
        .iter()
        .map(|no| refund_notice(no, "SUCCESS", 100, 300))
        .collect();
    stage.deliver_together(&notices).await;
    let others: Vec<String> = numbers()
        .into_iter()
        .filter(|number| number != "R7")
        .collect();
    for number in &others {
        stage.until_notice(number, "SUCCESS", "done -").await;
    }
    let reads = async || stage.notices("R7", "SUCCESS").await.concat();
    crate::support::until("the refused one is put back", || async {
        is_refused(&reads().await, "pending")
    })
    .await;
    assert_eq!(
        stage
            .int("SELECT attempts FROM notice WHERE out_refund_no = 'R7'")
            .await,
        1
    );
    crate::support::until("the refused one is dead", || async {
        stage.clock.advance(200);
        is_refused(&reads().await, "dead")
    })
    .await;
    assert_eq!(
        stage
            .int("SELECT attempts FROM notice WHERE out_refund_no = 'R7'")
            .await,
        3
    );
    stage.deliver_together(&notices).await;
    for number in &others {
        stage.assert_booked_once(number, 100).await;
    }
    assert_eq!(
        (
            stage.refund_status("R7").await.as_str(),
            stage.order("T-R7").await.as_str()
        ),
        ("SUCCESS", "0 NONE")
    );
    assert_eq!(books(&stage.db.database).await.ledger_rows, 15);
}

async fn a_refund_row_that_cannot_move_holds_up_nobody_else(db: TestDatabase) {
    // Aim: a refund row that the database will not let us change is handed to a person with the
    // reason, its neighbours are applied; and once it may change, a resend applies it.
    // Method: a trigger refuses to update the row of R7; 16 facts at once; drop the trigger; resend.
    let stage = Stage::with(db, "[commit]\nworkers = 1\n").await;
    refuse(&stage, "UPDATE ON refund_order", "R7").await;
    for number in numbers() {
        shop_writes(&stage.db.database, &number, 100, 300).await;
    }
    let notices: Vec<_> = numbers()
        .iter()
        .map(|no| refund_notice(no, "SUCCESS", 100, 300))
        .collect();
    stage.deliver_together(&notices).await;
    for number in numbers().iter().filter(|number| *number != "R7") {
        stage.until_notice(number, "SUCCESS", "done -").await;
    }
    let row = stage.notices("R7", "SUCCESS").await.concat();
    assert!(is_refused(&row, "quarantined"), "{row}");
    assert_eq!(stage.refund_status("R7").await, "PROCESSING");
    stage.run("DROP TRIGGER refuse").await;
    stage.deliver_together(&notices).await;
    for number in numbers() {
        stage.until_notice(&number, "SUCCESS", "done -").await;
        stage.assert_booked_once(&number, 100).await;
    }
}

async fn a_notice_that_cannot_be_stored_is_not_acknowledged(db: TestDatabase) {
    // Aim: what has no row gets no acknowledgement, and its refund does not move without it.
    // Method: a trigger refuses the notice of R7 in any state; 16 facts at once.
    let stage = Stage::with(db, "[commit]\nworkers = 1\n").await;
    refuse(&stage, "INSERT ON notice", "R7").await;
    let mut deliveries = Vec::new();
    for number in numbers() {
        shop_writes(&stage.db.database, &number, 100, 300).await;
        let delivery = stage.seal(&refund_notice(&number, "SUCCESS", 100, 300));
        deliveries.push((stage.app.notify_url(), delivery));
    }
    let statuses = stage.send_together(deliveries).await;
    let expected: Vec<u16> = numbers()
        .iter()
        .map(|number| if number == "R7" { 503 } else { 204 })
        .collect();
    assert_eq!(statuses, expected);
    assert_eq!(stage.refund_status("R7").await, "PROCESSING");
    assert_eq!(stage.notices("R7", "SUCCESS").await, Vec::<String>::new());
    stage.run("DROP TRIGGER refuse").await;
    assert_eq!(
        stage
            .deliver(&refund_notice("R7", "SUCCESS", 100, 300))
            .await,
        204
    );
    for number in numbers() {
        stage.until_notice(&number, "SUCCESS", "done -").await;
        stage.assert_booked_once(&number, 100).await;
    }
}

async fn a_waiting_fact_that_is_refused_goes_to_a_person(db: TestDatabase) {
    // Aim: a parked fact whose refund row comes and cannot move does not stay parked for ever.
    // Method: park it; a trigger refuses to update its row; the shop writes the row; let the relay look;
    // drop the trigger; resend.
    let stage = Stage::over(db).await;
    let notice = refund_notice("R7", "SUCCESS", 100, 300);
    stage.deliver_together(std::slice::from_ref(&notice)).await;
    stage
        .assert_notice("R7", "SUCCESS", "parked refund is not known here yet")
        .await;
    refuse(&stage, "UPDATE ON refund_order", "R7").await;
    shop_writes(&stage.db.database, "R7", 100, 300).await;
    crate::support::until("it is handed to a person", || async {
        stage.clock.advance(200);
        is_refused(
            &stage.notices("R7", "SUCCESS").await.concat(),
            "quarantined",
        )
    })
    .await;
    stage.run("DROP TRIGGER refuse").await;
    stage.deliver_together(&[notice]).await;
    stage.until_notice("R7", "SUCCESS", "done -").await;
    stage.assert_booked_once("R7", 100).await;
}

async fn a_row_that_never_agrees_holds_up_nobody_else(db: TestDatabase) {
    // Aim: a unique key that is broken each time, and not by another instance, is the row's own
    // fault: the others of its batch are booked, the one uses up its attempts.
    // Method: the shop's trigger on orders writes an audit row that exists already for one order.
    let stage = Stage::with(
        db,
        "[flush]\nworkers = 1\nwait_ms = 200\nattempts_max = 2\n",
    )
    .await;
    stage
        .run("CREATE TABLE audit (out_trade_no VARCHAR(64) PRIMARY KEY)")
        .await;
    stage.run("INSERT INTO audit VALUES ('T-R7')").await;
    let each_row = if stage.db.url.starts_with("sqlite:") {
        ""
    } else {
        "FOR EACH ROW"
    };
    let insert = "INSERT INTO audit VALUES (NEW.out_trade_no)";
    let body = if each_row.is_empty() {
        format!("BEGIN {insert}; END")
    } else {
        insert.to_owned()
    };
    stage
        .run(&format!(
            "CREATE TRIGGER audit_orders AFTER UPDATE ON orders {each_row} {body}"
        ))
        .await;
    for number in numbers() {
        shop_writes(&stage.db.database, &number, 100, 300).await;
    }
    let notices: Vec<_> = numbers()
        .iter()
        .map(|no| refund_notice(no, "SUCCESS", 100, 300))
        .collect();
    stage.deliver_together(&notices).await;
    for number in numbers().iter().filter(|number| *number != "R7") {
        stage.until_notice(number, "SUCCESS", "done -").await;
    }
    crate::support::until("the one is dead", || async {
        stage.clock.advance(200);
        stage
            .notices("R7", "SUCCESS")
            .await
            .concat()
            .starts_with("dead database: ")
    })
    .await;
    assert_eq!(books(&stage.db.database).await.ledger_rows, 15);
}
