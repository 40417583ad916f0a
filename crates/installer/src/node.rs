//! The directories of a node, and what is in them.

use std::path::{Path, PathBuf};

use cnikit_launcher::PROGRAM;
use cnikit_skel::Plugins;
use cnikit_store::Directory;

use crate::flags::{Flags, Reassert};
use crate::network_list::{self, NetworkList, Record};
use crate::place;
use crate::root::{Absent, Root, Trust};
use crate::runtimes;
use crate::sources::{Sources, TOOL};
use crate::standing::{Fingerprint, Linked, NEXT, Observed, Role, Standing, linked, look};

/// The directories that are worked on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Places {
    pub(crate) plugins: Vec<PathBuf>,
    /// Where network lists are; `None` if none is to be placed and it is not certain.
    pub(crate) networks: Option<PathBuf>,
    pub(crate) tools: Option<PathBuf>,
}

impl Places {
    /// The directories of the flags, otherwise those of the node's runtimes.
    pub(crate) fn find(root: &Root, flags: &Flags) -> Result<Places, String> {
        let mut places = Places {
            plugins: flags.plugin_dirs.clone(),
            networks: flags.conf_dir.clone(),
            tools: flags.tool_dir.clone(),
        };
        let needs_networks = places.networks.is_none() && (flags.network_list.is_some() || places.plugins.is_empty());
        if !places.plugins.is_empty() && !needs_networks {
            return Ok(places);
        }
        let found = runtimes::find(root, flags.preset)?;
        if places.plugins.is_empty() {
            for one in &found {
                if !places.plugins.contains(&one.plugins) {
                    places.plugins.push(one.plugins.clone());
                }
            }
        }
        if needs_networks {
            let first = found.first().map(|one| one.networks.clone());
            let is_certain = found.iter().all(|one| Some(&one.networks) == first.as_ref());
            if !is_certain && flags.network_list.is_some() {
                return Err("the node's runtimes have different directories of network lists; hint: --conf-dir".into());
            }
            places.networks = if is_certain { first } else { None };
        }
        Ok(places)
    }
}

/// The kind of a file that is placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Launcher,
    Binary,
    Tool,
    NetworkList,
}

/// A file as it should be, and as it is.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    /// The index of its directory in [`View::places`].
    pub(crate) place: usize,
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) standing: Standing,
    pub(crate) fingerprint: Fingerprint,
}

/// A directory of the node.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) path: PathBuf,
    pub(crate) kind: Kind,
    pub(crate) directory: Option<Directory>,
}

impl Place {
    /// The directory as this process sees it.
    pub(crate) fn shown(&self, root: &Root) -> PathBuf {
        root.shown(&self.path)
    }
}

/// What is to be placed, and where.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) root: Root,
    pub(crate) places: Places,
    pub(crate) sources: Sources,
    pub(crate) list: Option<NetworkList>,
}

/// One look at all files.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) places: Vec<Place>,
    pub(crate) items: Vec<Item>,
    /// Whether something of an earlier run is left: a temporary file, or the list that had another name.
    pub(crate) has_remains: bool,
    /// Which network list was placed before.
    pub(crate) record: Option<Record>,
}

impl Node {
    pub(crate) fn new(plugins: Plugins, flags: &Flags) -> Result<Node, String> {
        let root = Root::open(&flags.root, flags.trusted)?;
        let mut sources = Sources::read(plugins, flags.from.as_deref(), flags.tool_dir.is_some())?;
        for name in &flags.without {
            if !sources.names.contains(name) {
                return Err(format!("--without {name}: there is no plugin of this name"));
            }
        }
        sources.names.retain(|name| !flags.without.contains(name));
        let list = match &flags.network_list {
            Some(path) => Some(NetworkList::read(path, &flags.pod_cidrs.read()?)?),
            None => None,
        };
        let places = Places::find(&root, flags)?;
        Ok(Node { root, places, sources, list })
    }

    /// The content and the mode of a file.
    pub(crate) fn content(&self, kind: Kind) -> (&[u8], u32) {
        match kind {
            Kind::Launcher => (&self.sources.launcher, 0o755),
            Kind::Binary => (&self.sources.binary, 0o755),
            Kind::Tool => (self.sources.tool.as_deref().unwrap_or_default(), 0o755),
            Kind::NetworkList => (self.list.as_ref().map_or(&[][..], |list| &list.content), 0o600),
        }
    }

    /// Looks at every file. Directories that do not exist are made, or reported as empty ones.
    pub(crate) fn look(&self, absent: Absent) -> Result<View, String> {
        let mut view = View { places: Vec::new(), items: Vec::new(), has_remains: false, record: None };
        for path in &self.places.plugins {
            self.look_at_plugins(path, absent, &mut view)?;
        }
        if let Some(path) = &self.places.tools {
            let directory = self.root.directory(path, absent, Trust::GroupToo)?;
            let looked = look_in(directory.as_ref(), TOOL, Kind::Tool, self.content(Kind::Tool).0, &Vec::new())?;
            view.push(TOOL, Kind::Tool, looked);
            view.places.push(Place { path: path.clone(), kind: Kind::Tool, directory });
        }
        if let (Some(path), Some(list)) = (&self.places.networks, &self.list) {
            let directory = self.root.directory(path, absent, Trust::OwnerOnly)?;
            let looked = match &directory {
                Some(directory) => {
                    view.has_remains |= !place::temporaries(directory)?.is_empty();
                    look_at_list(directory, list)?
                }
                None => Observed { standing: Standing::Missing, fingerprint: None },
            };
            if let Some(directory) = &directory {
                view.record = Record::read(directory)?;
            }
            view.has_remains |= looked.standing == Standing::Current && view.record != Some(list.record());
            view.push(&list.name, Kind::NetworkList, looked);
            view.places.push(Place { path: path.clone(), kind: Kind::NetworkList, directory });
        }
        Ok(view)
    }

    fn look_at_plugins(&self, path: &Path, absent: Absent, view: &mut View) -> Result<(), String> {
        let directory = self.root.directory(path, absent, Trust::OwnerOnly)?;
        let mut of_0_1 = Vec::new();
        if let Some(directory) = &directory {
            of_0_1 = linked(directory, PROGRAM)?;
            view.has_remains |= !place::temporaries(directory)?.is_empty();
            view.has_remains |= directory.facts(NEXT).map_err(|error| error.to_string())?.is_some();
        }
        for name in &self.sources.names {
            let looked = look_in(directory.as_ref(), name, Kind::Launcher, &self.sources.launcher, &of_0_1)?;
            view.push(name, Kind::Launcher, looked);
        }
        let looked = look_in(directory.as_ref(), PROGRAM, Kind::Binary, &self.sources.binary, &of_0_1)?;
        view.push(PROGRAM, Kind::Binary, looked);
        view.places.push(Place { path: path.to_owned(), kind: Kind::Launcher, directory });
        Ok(())
    }

    /// The path of a file as this process sees it.
    pub(crate) fn shown(&self, view: &View, item: &Item) -> PathBuf {
        view.places[item.place].shown(&self.root).join(&item.name)
    }
}

impl View {
    /// Adds a file of the directory that is added next.
    fn push(&mut self, name: &str, kind: Kind, looked: Observed) {
        let Observed { standing, fingerprint } = looked;
        self.items.push(Item { place: self.places.len(), name: name.to_owned(), kind, standing, fingerprint });
    }

    /// Whether a directory of plugins has, or had, cnikit.
    fn has_binary(&self, place: usize) -> bool {
        let of = |item: &&Item| item.place == place && item.kind == Kind::Binary;
        self.items.iter().find(of).is_some_and(|item| !matches!(item.standing, Standing::Missing | Standing::Foreign))
    }

    /// Whether a file is to be placed, when an installation begins.
    pub(crate) fn is_wanted(&self, item: &Item, reassert: Reassert) -> bool {
        match item.standing {
            Standing::Current => false,
            Standing::Foreign if reassert == Reassert::Missing => match item.kind {
                Kind::Launcher => !self.has_binary(item.place),
                Kind::Binary => true,
                Kind::NetworkList => self.record.is_none(),
                Kind::Tool => false,
            },
            _ => true,
        }
    }
}

fn look_in(
    directory: Option<&Directory>,
    name: &str,
    kind: Kind,
    wanted: &[u8],
    of_0_1: &Linked,
) -> Result<Observed, String> {
    let Some(directory) = directory else { return Ok(Observed { standing: Standing::Missing, fingerprint: None }) };
    let role = if kind == Kind::Launcher { Role::Launcher } else { Role::Binary };
    look(directory, name, role, wanted, of_0_1)
}

/// A list is ours if it has the content that the record says was placed.
fn look_at_list(directory: &Directory, list: &NetworkList) -> Result<Observed, String> {
    let Some(facts) = directory.facts(&list.name).map_err(|error| error.to_string())? else {
        return Ok(Observed { standing: Standing::Missing, fingerprint: None });
    };
    let changed = i64::try_from(facts.changed).unwrap_or(i64::MAX);
    let fingerprint = Some((facts.inode, facts.size, changed, 0, 0, 0));
    let standing = match network_list::installed(directory, &list.name)? {
        Some(content) if content == list.content => Standing::Current,
        Some(content) => {
            let record = Record::read(directory)?;
            let is_ours = record.is_some_and(|record| record.name == list.name && record.is_of(&content));
            let is_whole = serde_json::from_slice::<serde_json::Value>(&content).is_ok();
            match (is_ours, is_whole) {
                (true, _) => Standing::OtherVersion,
                (false, true) => Standing::Foreign,
                (false, false) => Standing::Broken,
            }
        }
        None => Standing::Foreign,
    };
    Ok(Observed { standing, fingerprint })
}
