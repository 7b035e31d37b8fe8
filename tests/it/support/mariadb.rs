//! The MariaDB that `tests/with-mariadb` started, and private ones for tests that stop theirs.

/// Makes an empty schema on the shared server; gives its address.
pub(crate) async fn new_schema() -> String {
    unimplemented!()
}
