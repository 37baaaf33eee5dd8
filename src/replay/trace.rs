//! The trace: rows of CSV, read as a stream and checked one by one.

use std::fs::File;
use std::io::{BufReader, Chain, Read};
use std::path::{Path, PathBuf};

use chrono::{DateTime, NaiveDateTime, Utc};
use csv::StringRecord;

/// The most tokens that a field of a row may state. Sums of two stay within what
/// an amount can hold.
pub(super) const MOST_TOKENS: u64 = 1_000_000_000_000_000;

const TIMESTAMP: &str = "TIMESTAMP";
const PROMPT: &str = "ContextTokens";
const GENERATED: &str = "GeneratedTokens";

/// One request of the trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    /// Its number, from 1, the header not counted.
    pub(super) number: u64,
    pub(super) at: DateTime<Utc>,
    pub(super) prompt: u64,
    pub(super) generated: u64,
}

impl Row {
    /// What the request used.
    pub(super) fn actual(&self) -> u64 {
        self.prompt.saturating_add(self.generated)
    }
}

/// Why a trace cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be opened or read.
    #[error("cannot read the trace {path}: {error}", path = .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// The header has not the columns of a trace.
    #[error(
        "line 1: the header must have the column {column} exactly once \
         (it needs {TIMESTAMP}, {PROMPT} and {GENERATED})"
    )]
    Header {
        /// The column that is missing or there twice.
        column: &'static str,
    },
    /// A line has a field that is not what its column says.
    #[error("line {line}, {field}: {reason}")]
    Field {
        /// The line, from 1, the header counted.
        line: u64,
        /// The column's name.
        field: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// A line is no CSV record of this file.
    #[error("line {line}: {reason}")]
    Line {
        /// The line, from 1, the header counted.
        line: u64,
        /// What is wrong with it.
        reason: String,
    },
}

/// Where the columns are.
#[derive(Debug, Clone, Copy)]
struct Columns {
    timestamp: usize,
    prompt: usize,
    generated: usize,
}

impl Columns {
    fn find(header: &StringRecord) -> Result<Self, TraceError> {
        let position = |column| {
            let mut found = header.iter().enumerate().filter(|(_, name)| name.trim() == column);
            match (found.next(), found.next()) {
                (Some((index, _)), None) => Ok(index),
                _ => Err(TraceError::Header { column }),
            }
        };
        Ok(Self { timestamp: position(TIMESTAMP)?, prompt: position(PROMPT)?, generated: position(GENERATED)? })
    }
}

/// The rows of a trace, one at a time; it ends with the first error.
pub(super) struct Trace<R> {
    reader: csv::Reader<Chain<R, &'static [u8]>>,
    columns: Columns,
    width: usize,
    record: StringRecord,
    path: PathBuf,
    number: u64,
    ended: bool,
}

impl Trace<BufReader<File>> {
    pub(super) fn open(path: &Path) -> Result<Self, TraceError> {
        let file = File::open(path).map_err(|error| TraceError::Read { path: path.to_owned(), error })?;
        Self::new(BufReader::new(file), path)
    }
}

impl<R: Read> Trace<R> {
    fn new(source: R, path: &Path) -> Result<Self, TraceError> {
        // Every record ends with a `\n` that is there, so that its line is the one
        // before the reader's. (A reader that takes `\r\n` itself stops between the
        // two.) What is left of a `\r` is a blank at the end of the last field.
        let mut reader = csv::ReaderBuilder::new()
            .terminator(csv::Terminator::Any(b'\n'))
            .flexible(true)
            .from_reader(source.chain(&b"\n"[..]));
        let header = reader.headers().map_err(|error| complaint(path, 1, error))?;
        let (columns, width) = (Columns::find(header)?, header.len());
        let (record, path) = (StringRecord::new(), path.to_owned());
        Ok(Self { reader, columns, width, record, path, number: 0, ended: false })
    }

    fn read(&mut self) -> Result<Option<Row>, TraceError> {
        loop {
            let read = self.reader.read_record(&mut self.record);
            let line = self.reader.position().line().saturating_sub(1);
            if !read.map_err(|error| complaint(&self.path, line, error))? {
                return Ok(None);
            }
            let blank = self.record.len() == 1 && self.record.iter().all(|f| f.trim().is_empty());
            if !blank {
                return self.parse(line).map(Some);
            }
        }
    }

    fn parse(&mut self, line: u64) -> Result<Row, TraceError> {
        let (has, width) = (self.record.len(), self.width);
        if has != width {
            let reason = format!("has {has} fields where the header has {width}");
            return Err(TraceError::Line { line, reason });
        }
        let field = |index| self.record.get(index).unwrap_or_default().trim();
        let wrong = |field, reason| TraceError::Field { line, field, reason };
        let tokens = |index, name| parse_tokens(field(index)).map_err(|reason| wrong(name, reason));
        self.number = self.number.saturating_add(1);
        Ok(Row {
            number: self.number,
            at: parse_time(field(self.columns.timestamp)).map_err(|why| wrong(TIMESTAMP, why))?,
            prompt: tokens(self.columns.prompt, PROMPT)?,
            generated: tokens(self.columns.generated, GENERATED)?,
        })
    }
}

impl<R: Read> Iterator for Trace<R> {
    type Item = Result<Row, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let read = self.read().transpose();
        self.ended = !matches!(read, Some(Ok(_)));
        read
    }
}

/// Reads the trace once without keeping it: a bad line is found before the rows
/// above it have been spent. The number of rows; none for what cannot be read
/// twice, such as a pipe.
pub(super) fn survey(path: &Path, limit: u64) -> Result<Option<u64>, TraceError> {
    let unreadable = |error| TraceError::Read { path: path.to_owned(), error };
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        return Ok(None);
    }
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let mut rows = 0;
    for row in Trace::open(path)?.take(limit) {
        rows = row?.number;
    }
    Ok(Some(rows))
}

fn complaint(path: &Path, line: u64, error: csv::Error) -> TraceError {
    let reason = match error.kind() {
        csv::ErrorKind::Utf8 { .. } => "is not UTF-8".to_owned(),
        _ => error.to_string(),
    };
    match error.into_kind() {
        csv::ErrorKind::Io(error) => TraceError::Read { path: path.to_owned(), error },
        _ => TraceError::Line { line, reason },
    }
}

fn parse_tokens(text: &str) -> Result<u64, String> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let tokens = text.parse().ok().filter(|tokens| plain && *tokens <= MOST_TOKENS);
    tokens.ok_or_else(|| format!("{text:?} is not a whole number from 0 to {MOST_TOKENS}"))
}

/// Date and time with a blank or a `T` between them; UTC if no offset is given.
fn parse_time(text: &str) -> Result<DateTime<Utc>, String> {
    if let Ok(time) = text.parse::<DateTime<Utc>>() {
        return Ok(time);
    }
    ["%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%dT%H:%M:%S%.f"]
        .iter()
        .find_map(|format| NaiveDateTime::parse_from_str(text, format).ok())
        .map(|time| time.and_utc())
        .ok_or_else(|| format!("{text:?} is not a time such as 2023-11-16 18:17:03.9799600"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(text: &str) -> Result<Vec<Row>, String> {
        let trace = Trace::new(text.as_bytes(), Path::new("t.csv"));
        let rows = trace.and_then(|trace| trace.collect::<Result<Vec<_>, _>>());
        rows.map_err(|error| error.to_string())
    }

    #[test]
    fn columns_are_found_by_name_whatever_the_line_ends() {
        let text = "\u{feff}GeneratedTokens,model, TIMESTAMP ,ContextTokens\r\n\
            10,a,2023-11-16 18:17:03.9799600,4808\r\n\
            \r\n\n\
            0,b,2023-11-16T20:17:04.5+02:00,0";
        let read = rows(text).unwrap();
        assert_eq!(read.len(), 2);
        assert_eq!((read[0].number, read[0].prompt, read[0].generated), (1, 4808, 10));
        assert_eq!((read[1].number, read[1].actual()), (2, 0));
        assert_eq!((read[1].at - read[0].at).num_nanoseconds(), Some(520_040_000));
        assert_eq!(rows("TIMESTAMP,ContextTokens,GeneratedTokens\n"), Ok(vec![]));
    }

    #[test]
    fn what_is_wrong_is_named_by_line_and_field() {
        let first = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,1,2\n";
        let fails = |line: &str| rows(&format!("{first}{line}\n")).unwrap_err();
        assert_eq!(
            fails("2023-11-16 18:17:03,-1,2"),
            "line 3, ContextTokens: \"-1\" is not a whole number from 0 to 1000000000000000"
        );
        assert!(fails("2023-11-16 18:17:03,1,").starts_with("line 3, GeneratedTokens: \"\""));
        assert!(fails("2023-11-16 18:17:03,1,+2").starts_with("line 3, GeneratedTokens"));
        assert!(fails("2023-11-16 18:17:03,1,99999999999999999999").contains("GeneratedTokens"));
        assert!(fails("yesterday,1,2").starts_with("line 3, TIMESTAMP: \"yesterday\""));
        assert_eq!(fails("2023-11-16 18:17:03,1"), "line 3: has 2 fields where the header has 3");
        let windows = format!("{first}\n2023-11-16 18:17:03,1,2\n\nx,1,2").replace('\n', "\r\n");
        assert!(rows(&windows).unwrap_err().starts_with("line 6, TIMESTAMP: \"x\""));
        let unix = windows.replace('\r', "");
        assert!(rows(&unix).unwrap_err().starts_with("line 6, TIMESTAMP: \"x\""));
        let latin = [first.as_bytes(), b"2023-11-16 18:17:03,1,\xe9\r\n"].concat();
        let trace = Trace::new(latin.as_slice(), Path::new("t.csv")).unwrap();
        let error = trace.last().unwrap().unwrap_err();
        assert_eq!(error.to_string(), "line 3: is not UTF-8");
    }

    #[test]
    fn the_header_must_be_a_traces() {
        for (text, column) in [
            ("", "TIMESTAMP"),
            ("TIMESTAMP,ContextTokens\n", "GeneratedTokens"),
            ("TIMESTAMP,ContextTokens,GeneratedTokens,ContextTokens\n", "ContextTokens"),
        ] {
            let error = rows(text).unwrap_err();
            assert!(error.contains(&format!("the column {column} exactly once")), "{error}");
        }
    }

    #[test]
    fn a_trace_ends_with_its_first_error() {
        let text = "TIMESTAMP,ContextTokens,GeneratedTokens\nx,1,2\n2023-11-16 18:17:03,1,2\n";
        let mut trace = Trace::new(text.as_bytes(), Path::new("t.csv")).unwrap();
        assert!(trace.next().unwrap().is_err());
        assert!(trace.next().is_none());
    }
}
