//! sql_text
