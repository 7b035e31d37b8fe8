//! mariadb_faults
