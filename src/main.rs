//! The command line: parses it and calls a command.

use clap::Parser;

fn main() -> std::process::ExitCode {
    refund_batcher::commands::main(refund_batcher::commands::Cli::parse())
}
