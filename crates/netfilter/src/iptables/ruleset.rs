//! One table, read and changed.

use super::programs::Reading;
use super::{Changes, Changing, Error, Programs, Result, Table, Traces};

/// How often it is tried again when somebody else changed what was read before it could be changed.
const TRIES: usize = 3;

/// One table of iptables, as it was read a moment ago.
///
/// Reading and changing are two programs, and others may come between them; then the change fails as a whole, the table
/// is read again and the difference computed anew. What is only added cannot be told apart from its like by the program:
/// whoever adds has to look whether it is there.
#[derive(Debug)]
pub struct Ruleset {
    programs: Programs,
    table: &'static str,
    mention: String,
    traces: Option<Traces>,
    read: Table,
}

/// A table that is being read. To drop it gives it up: nothing was to be changed, and the program ends with the caller's
/// thread.
#[must_use = "what was read tells Opening::finish alone"]
pub struct Opening {
    ruleset: Ruleset,
    reading: Reading,
}

impl Opening {
    /// Waits until it is read.
    pub fn finish(self) -> Result<Ruleset> {
        let Self { mut ruleset, reading } = self;
        ruleset.read = reading.finish(&ruleset.mention)?;
        Ok(ruleset)
    }
}

impl Ruleset {
    /// Reads a table, of which only lines that hold `mention` are of interest.
    pub fn open(programs: Programs, table: &'static str, mention: &str) -> Result<Self> {
        Self::begin_open(programs, table, mention)?.finish()
    }

    /// Has a table read, and waits for nothing.
    pub fn begin_open(programs: Programs, table: &'static str, mention: &str) -> Result<Opening> {
        let reading = programs.begin_read(table)?;
        let ruleset = Self { programs, table, mention: mention.to_owned(), traces: None, read: Table::default() };
        Ok(Opening { ruleset, reading })
    }

    /// As [`Ruleset::open`] where it is known what stands: none of it may be missing from what the programs show.
    ///
    /// # Errors
    /// [`Error::Hidden`] if it is, and still stands.
    pub fn open_whole(programs: Programs, traces: Traces, table: &'static str, mention: &str) -> Result<Self> {
        Self { programs, table, mention: mention.to_owned(), traces: Some(traces), read: Table::default() }.read()
    }

    /// Others may remove a chain and make it anew while the program reads, so that it looks hidden: whoever is, stays so.
    fn read(mut self) -> Result<Self> {
        let mut hidden = self.traces.clone();
        for left in (0..TRIES).rev() {
            self.read = self.programs.read(self.table, &self.mention)?;
            hidden = hidden.map_or(Ok(None), |traces| traces.hidden_from(&self.read))?;
            match &hidden {
                None => break,
                Some(traces) if left == 0 => return Err(Error::Hidden { table: self.table, chain: traces.first() }),
                Some(_) => {}
            }
        }
        Ok(self)
    }

    /// The table as it was read.
    pub fn table(&self) -> &Table {
        &self.read
    }

    /// Has changes begun that were decided by the table as it was read, and waits for nothing. They are made or refused as a
    /// whole, the latter also where somebody else came between; none is begun where nothing is to be different.
    pub fn begin(&self, changes: &Changes) -> Result<Option<Changing>> {
        if changes.is_empty() { Ok(None) } else { self.programs.begin(self.table, changes).map(Some) }
    }

    /// Makes the changes that `decide` wants of the table as it is, and none where it wants none.
    pub fn change(mut self, mut decide: impl FnMut(&Table) -> Changes) -> Result<()> {
        for left in (0..TRIES).rev() {
            let changes = decide(&self.read);
            match self.begin(&changes).and_then(|begun| begun.map_or(Ok(()), Changing::finish)) {
                Ok(()) => break,
                Err(Error::Failed { .. } | Error::Unread { .. }) if left > 0 => self = self.read()?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
