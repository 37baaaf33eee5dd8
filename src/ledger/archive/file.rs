//! The file of an archived month: complete and on the disk before it has its name,
//! and never written over.

use std::fs::File;
use std::io::{BufWriter, Read, Write as _};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

/// What stands against a file.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The system says no.
    #[error("{}: {source}", path.display())]
    System {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The text is not CSV as it was written.
    #[error("{}: {message}", path.display())]
    Text {
        /// The file.
        path: PathBuf,
        /// In which way.
        message: String,
    },
    /// Another file has the name.
    #[error("{} is there and is another file: move it away, or archive to another directory", .0.display())]
    Another(PathBuf),
    /// The file is not the one that was archived.
    #[error("{} is not the file that was archived: its SHA-256 is another. What it stands for was not dropped", .0.display())]
    NotArchived(PathBuf),
}

impl FileError {
    pub(super) fn system(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::System { path, source }
    }

    pub(super) fn text(path: &Path, message: impl ToString) -> Self {
        Self::Text { path: path.to_owned(), message: message.to_string() }
    }
}

/// A file that is being written.
pub(super) struct MonthFile {
    path: PathBuf,
    unfinished: PathBuf,
    out: BufWriter<File>,
    sha256: Sha256,
    rows: u64,
}

/// What is in a file.
pub(super) struct Written {
    pub path: PathBuf,
    pub rows: u64,
    pub sha256: [u8; 32],
}

impl MonthFile {
    /// Begins it with its first line, the names of the columns.
    pub(super) fn create(directory: &Path, name: &str, columns: &[&str]) -> Result<Self, FileError> {
        let unfinished = directory.join(format!(".{name}.unfinished"));
        let file = File::create(&unfinished).map_err(FileError::system(&unfinished))?;
        let mut file =
            Self { path: directory.join(name), unfinished, out: BufWriter::new(file), sha256: Sha256::new(), rows: 0 };
        let header = line(columns.iter().map(|column| Some(*column)));
        file.write(&header)?;
        Ok(file)
    }

    /// Writes a row: a line without its end.
    pub(super) fn row(&mut self, line: &[u8]) -> Result<(), FileError> {
        self.rows += 1;
        self.write(line)
    }

    fn write(&mut self, line: &[u8]) -> Result<(), FileError> {
        for part in [line, b"\n"] {
            self.sha256.update(part);
            self.out.write_all(part).map_err(FileError::system(&self.unfinished))?;
        }
        Ok(())
    }

    /// Brings it to the disk and gives it its name. The same file may be there from a
    /// run that was interrupted; another one may not.
    pub(super) fn finish(self) -> Result<Written, FileError> {
        let Self { path, unfinished, out, sha256, rows } = self;
        let sha256: [u8; 32] = sha256.finalize().into();
        let file = out.into_inner().map_err(|error| FileError::system(&unfinished)(error.into_error()))?;
        file.sync_all().map_err(FileError::system(&unfinished))?;
        if path.exists() {
            if hash(&path)? != sha256 {
                return Err(FileError::Another(path));
            }
            std::fs::remove_file(&unfinished).map_err(FileError::system(&unfinished))?;
        } else {
            std::fs::rename(&unfinished, &path).map_err(FileError::system(&path))?;
        }
        sync_directory(&path)?;
        Ok(Written { path, rows, sha256 })
    }
}

/// Brings the name of a file, or of a directory, to the disk.
fn sync_directory(path: &Path) -> Result<(), FileError> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(FileError::system(directory))
}

/// One line of CSV, without its end. What is absent is empty.
pub(super) fn line<'a>(fields: impl Iterator<Item = Option<&'a str>>) -> Vec<u8> {
    let mut line = Vec::with_capacity(256);
    for (place, field) in fields.enumerate() {
        if place > 0 {
            line.push(b',');
        }
        let field = field.unwrap_or_default();
        if field.contains([',', '"', '\n', '\r']) {
            line.push(b'"');
            line.extend_from_slice(field.replace('"', "\"\"").as_bytes());
            line.push(b'"');
        } else {
            line.extend_from_slice(field.as_bytes());
        }
    }
    line
}

/// A reader that hashes what passes through it.
pub(super) struct Hashing<R> {
    inner: R,
    sha256: Sha256,
}

impl<R: Read> Hashing<R> {
    pub(super) fn new(inner: R) -> Self {
        Self { inner, sha256: Sha256::new() }
    }

    pub(super) fn finish(self) -> [u8; 32] {
        self.sha256.finalize().into()
    }
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.sha256.update(buffer.get(..read).unwrap_or_default());
        Ok(read)
    }
}

/// The SHA-256 of a file.
pub(super) fn hash(path: &Path) -> Result<[u8; 32], FileError> {
    let mut reader = Hashing::new(File::open(path).map_err(FileError::system(path))?);
    std::io::copy(&mut reader, &mut std::io::sink()).map_err(FileError::system(path))?;
    Ok(reader.finish())
}

/// Refuses a file that is not the one that was recorded.
pub(super) fn must_be(path: &Path, sha256: &[u8]) -> Result<(), FileError> {
    if hash(path)? == sha256 { Ok(()) } else { Err(FileError::NotArchived(path.to_owned())) }
}

/// Makes a directory, and brings the name of each that it makes on the way to the
/// disk: what is in a file may be dropped, and a file is lost with its directory.
pub(super) fn make_directory(path: &Path) -> Result<(), FileError> {
    let missing: Vec<&Path> =
        path.ancestors().take_while(|path| !path.as_os_str().is_empty() && !path.exists()).collect();
    std::fs::create_dir_all(path).map_err(FileError::system(path))?;
    missing.into_iter().try_for_each(sync_directory)
}

#[cfg(test)]
mod tests {
    use super::{line, make_directory};

    #[test]
    fn a_directory_is_made_with_those_above_it() {
        let place = tempfile::tempdir().unwrap();
        let deep = place.path().join("a/b/c");
        make_directory(&deep).unwrap();
        assert!(deep.is_dir());
        make_directory(&deep).unwrap();
        make_directory(std::path::Path::new(".")).unwrap();
        std::fs::write(deep.join("file"), "").unwrap();
        make_directory(&deep.join("file/d")).unwrap_err();
    }

    #[test]
    fn a_line_is_read_back_as_it_was() {
        let fields = ["", "plain", "a,b", "say \"no\"", "two\nlines", "cr\r", " spaces ", "é"];
        let mut text = line(fields.iter().map(|field| Some(*field)));
        text.push(b'\n');
        let mut reader = csv::ReaderBuilder::new().has_headers(false).from_reader(text.as_slice());
        let read: Vec<String> = reader.records().next().unwrap().unwrap().iter().map(str::to_owned).collect();
        assert_eq!(read, fields);
        assert_eq!(line([Some("a"), None, Some("b")].into_iter()), b"a,,b");
    }
}
