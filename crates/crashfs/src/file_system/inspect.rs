//! Queries that show which bytes and names of the files are durable, to explain a loss.
use super::{Content, FileSystem, NameChange, ROOT, SECTOR, sector_of};
use crate::types::{Inode, SurvivingData, Survivors};
use std::collections::BTreeSet;
use std::ops::Range;

impl FileSystem {
    /// Returns the paths of a file or directory relative to the mount point, including names that are not durable.
    pub fn paths(&self, inode: Inode) -> Vec<String> {
        self.paths_by(inode, &|directory| directory.seen.iter().collect())
    }

    /// Returns the paths of a file or directory that consist only of durable names, which are on the media.
    pub fn durable_paths(&self, inode: Inode) -> Vec<String> {
        self.paths_by(inode, &|directory| directory.durable.iter().collect())
    }

    fn paths_by<'f>(
        &'f self,
        inode: Inode,
        names: &dyn Fn(&'f super::Directory) -> Vec<(&'f String, &'f Inode)>,
    ) -> Vec<String> {
        let mut paths = Vec::new();
        // Climb from the file to the root. Each entry of `open` has a directory, the path from there to the file, and
        // the set of directories on that path. If only some renames are durable, directories may contain each other in
        // a cycle. So end a path when it reaches a directory for the second time.
        let mut open = vec![(inode, String::new(), BTreeSet::from([inode]))];
        while let Some((at, below, passed)) = open.pop() {
            if at == ROOT {
                paths.push(below);
                continue;
            }
            for (parent, node) in &self.nodes {
                let Content::Directory(directory) = &node.content else { continue };
                for (name, _) in names(directory).into_iter().filter(|(_, named)| **named == at) {
                    let mut passed = passed.clone();
                    if passed.insert(*parent) {
                        let path = if below.is_empty() { name.clone() } else { format!("{name}/{below}") };
                        open.push((*parent, path, passed));
                    }
                }
            }
        }
        paths.sort();
        paths
    }

    /// Returns true if these bytes of a file are durable: the media has the same bytes that processes read.
    pub fn is_durable(&self, inode: Inode, bytes: Range<usize>) -> bool {
        let Some(Content::File(file)) = self.nodes.get(&inode).map(|node| &node.content) else { return true };
        let part = |of: &[u8]| of.get(bytes.start.min(of.len())..bytes.end.min(of.len())).map(<[u8]>::to_vec);
        part(&file.seen) == part(&file.durable)
    }

    /// Returns true if a failed sync has discarded some of these bytes, so that no later sync writes them.
    pub fn is_dropped(&self, inode: Inode, bytes: Range<usize>) -> bool {
        let Some(Content::File(file)) = self.nodes.get(&inode).map(|node| &node.content) else { return false };
        let end = bytes.end.min(file.seen.len()).div_ceil(SECTOR);
        let is_waiting = |number: &usize| file.versions.contains_key(number);
        let differs = |number: usize| sector_of(&file.seen, number) != sector_of(&file.durable, number);
        let has_lost_length = file.lengths.is_empty() && file.durable.len() != file.seen.len();
        has_lost_length || (bytes.start / SECTOR..end).any(|number| !is_waiting(&number) && differs(number))
    }

    /// Returns the additions, removals and renames of names that no sync has made durable, oldest first.
    pub fn unsynced_names(&self) -> impl DoubleEndedIterator<Item = &NameChange> {
        self.changes.iter().map(|(change, _)| change)
    }

    /// Returns all regular files that have a name or are open.
    pub fn regular_files(&self) -> Vec<Inode> {
        self.files().map(|(inode, _)| inode).collect()
    }

    /// Returns all names of files and directories as processes see them, each with its inode number.
    pub fn all_names(&self) -> Vec<(String, Inode)> {
        let names = self.directories().flat_map(|directory| &directory.seen);
        names.map(|(name, inode)| (name.clone(), *inode)).collect()
    }

    /// Describes a power cut that loses nothing, because all unsynced changes survive it.
    pub fn all_unsynced(&self) -> Survivors {
        let dirty = self.nodes.iter().filter_map(|(inode, node)| match &node.content {
            Content::File(file) if !file.is_clean() => Some((*inode, file.all_survives())),
            _ => None,
        });
        Survivors { names: (0..self.changes.len()).collect(), files: dirty.collect::<Vec<(Inode, SurvivingData)>>() }
    }
}
