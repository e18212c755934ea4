//! Recipients of a message, grouped by next hop. Each mailbox occurs only once.
use crate::message::envelope::{EnvelopeRecipient, OriginalAddress};
use crate::routing::{NextHop, Router};
use mailrun_smtp::dsn::Notify;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

pub(crate) struct RecipientGroup {
    /// The next hop itself, and not the number that the queue uses for it. The queue may give this number to another
    /// next hop before the message is stored.
    pub(crate) next_hop: NextHop,
    pub(crate) recipients: Vec<u16>,
}

/// Upper bound, in bytes, of the memory for a recipient without its texts. The bound includes the recipient's places in
/// lists and indexes, and a next hop that no other recipient shares.
const RECIPIENT_BYTES: usize = 832;
/// Number of copies of an address for which memory is counted: in the list, an index, and the next hop's name.
const ADDRESS_COPIES: usize = 3;

/// Recipients of a message that is being received. A mailbox that is named twice, or that several
/// aliases lead to, is a single recipient.
#[derive(Default)]
pub(crate) struct RecipientList {
    recipients: Vec<EnvelopeRecipient>,
    groups: Vec<RecipientGroup>,
    /// Index in `groups` of each next hop's group. Empty while there are fewer than two groups, because a single group
    /// is found without an index.
    group_numbers: HashMap<NextHop, usize, foldhash::fast::RandomState>,
    /// Number of each recipient, by its group and its normalised address. This index shows whether a mailbox is already
    /// in the list. Empty while there are fewer than two recipients.
    numbers: HashMap<(usize, Box<str>), u16, foldhash::fast::RandomState>,
    bytes: usize,
    encoded_bytes: usize,
}

impl RecipientList {
    pub(crate) fn len(&self) -> usize {
        self.recipients.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.recipients.is_empty()
    }

    pub(crate) fn only_address(&self) -> Option<&[u8]> {
        match self.recipients.as_slice() {
            [recipient] => Some(&recipient.address),
            _ => None,
        }
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// Returns an upper bound of the memory, in bytes, that the list would take after adding
    /// `members`. The session reserves this memory before it adds them.
    pub(crate) fn memory_bytes_with(&self, members: &[(Box<str>, NextHop)], original: Option<&OriginalAddress>) -> u64 {
        let members = members.iter().map(|(address, next_hop)| recipient_bytes(address.as_bytes(), next_hop));
        (self.bytes + original.map_or(0, OriginalAddress::memory_bytes) + members.sum::<usize>()) as u64
    }

    /// Returns an upper bound, in bytes, of the size that the encoded list of recipients would have after adding
    /// `members`: a single recipient, or the members of an alias.
    pub(crate) fn encoded_bytes_with(
        &self,
        members: &[(Box<str>, NextHop)],
        original: Option<&OriginalAddress>,
    ) -> usize {
        let members = members.iter().map(|(address, _)| encoded_bytes(address.as_bytes(), original));
        self.encoded_bytes + members.sum::<usize>()
    }

    pub(crate) fn contains(&self, router: &Router, address: &[u8], next_hop: &NextHop) -> bool {
        let is_key = |group: usize| {
            let key = mailbox_key(router, address, next_hop);
            match self.recipients.as_slice() {
                [one] => key == mailbox_key(router, &one.address, next_hop),
                _ => self.numbers.contains_key(&(group, key)),
            }
        };
        self.group_number(next_hop).is_some_and(is_key)
    }

    /// Adds a recipient to the group of its next hop. If its mailbox is already in the list, this only adds the
    /// requested notifications to the existing recipient.
    pub(crate) fn add(&mut self, router: &Router, recipient: EnvelopeRecipient, next_hop: NextHop) {
        let number = self.recipients.len() as u16;
        let bytes = recipient_bytes(&recipient.address, &next_hop);
        let group = self.group_number(&next_hop).unwrap_or_else(|| self.add_group(next_hop));
        if number > 0 {
            if let (true, [first, ..]) = (self.numbers.is_empty(), self.recipients.as_slice()) {
                let key = mailbox_key(router, &first.address, &self.groups[0].next_hop);
                self.numbers.insert((0, key), 0);
            }
            let key = mailbox_key(router, &recipient.address, &self.groups[group].next_hop);
            match self.numbers.entry((group, key)) {
                Entry::Occupied(earlier) => {
                    let earlier = &mut self.recipients[usize::from(*earlier.get())];
                    earlier.notify = union(earlier.notify, recipient.notify);
                    return;
                }
                Entry::Vacant(free) => drop(free.insert(number)),
            }
        }
        let last = self.recipients.last().and_then(|last| last.original.as_ref());
        let original = recipient.original.as_ref().filter(|it| !last.is_some_and(|last| Arc::ptr_eq(last, it)));
        self.encoded_bytes += encoded_bytes(&recipient.address, recipient.original.as_deref());
        self.bytes += bytes + original.map_or(0, |original| original.memory_bytes());
        self.groups[group].recipients.push(number);
        self.recipients.push(recipient);
    }

    fn group_number(&self, next_hop: &NextHop) -> Option<usize> {
        match self.groups.as_slice() {
            [.., last] if last.next_hop == *next_hop => Some(self.groups.len() - 1),
            _ => self.group_numbers.get(next_hop).copied(),
        }
    }

    fn add_group(&mut self, next_hop: NextHop) -> usize {
        let number = self.groups.len();
        if let [only] = self.groups.as_slice() {
            self.group_numbers.insert(only.next_hop.clone(), 0);
        }
        if number > 0 {
            self.group_numbers.insert(next_hop.clone(), number);
        }
        self.groups.push(RecipientGroup { next_hop, recipients: Vec::new() });
        number
    }

    pub(crate) fn into_parts(self) -> (Vec<EnvelopeRecipient>, Vec<RecipientGroup>) {
        (self.recipients, self.groups)
    }
}

/// Returns an upper bound of the number of bytes that a recipient takes in an encoded envelope, with its texts, their
/// lengths and the flags.
fn encoded_bytes(address: &[u8], original: Option<&OriginalAddress>) -> usize {
    let original = original.map_or(0, |original| original.kind.len() + original.address.len());
    16 + address.len() + original
}

fn recipient_bytes(address: &[u8], next_hop: &NextHop) -> usize {
    let path = next_hop.mailbox().map_or(0, |path| path.as_os_str().len());
    RECIPIENT_BYTES + ADDRESS_COPIES * address.len() + path
}

/// Returns a key that is the same for all addresses of one mailbox at a next hop. If the next hop is a Maildir, all
/// addresses have the same key, because a Maildir is a single mailbox.
fn mailbox_key(router: &Router, address: &[u8], next_hop: &NextHop) -> Box<str> {
    match next_hop.mailbox() {
        Some(_) => "".into(),
        None => router.compared(&mailrun_smtp::Path::checked_before(address)).into(),
    }
}

/// Combines the NOTIFY parameters of two RCPT commands for the same mailbox: the result asks for all notifications that
/// either command asks for. A command without NOTIFY asks for failures and delays (RFC 3461 §4.1).
fn union(one: Option<Notify>, other: Option<Notify>) -> Option<Notify> {
    let default = Notify::FAILURE.and(Notify::DELAY);
    match (one, other) {
        (Some(one), Some(other)) => Some(one.and(other)),
        (Some(one), None) | (None, Some(one)) if one.wants(Notify::SUCCESS) => Some(one.and(default)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, ConfigEnvironment};
    use crate::message::envelope::MessageEnvelope;
    use crate::routing::{Access, ResolvedRoute, Smtp};
    use proptest::prelude::*;
    use std::collections::HashSet;
    use std::ffi::OsStr;
    use std::io;
    use std::path::Path;

    /// Size of an allocation in bytes, including the allocator's header and rounding.
    fn allocation(bytes: usize) -> usize {
        if bytes == 0 { 0 } else { (bytes + 8).next_multiple_of(16).max(32) }
    }

    fn table<K, V, S>(map: &HashMap<K, V, S>) -> usize {
        // A hash table can use only seven eighths of its slots, and `capacity` counts only these slots. The number of
        // all slots is a power of two. Each slot also has a control byte.
        allocation(if map.is_empty() {
            0
        } else {
            (map.capacity() * 8 / 7).next_power_of_two() * (size_of::<(K, V)>() + 1) + 16
        })
    }

    /// Returns the memory that a list takes in bytes, computed from the capacities of its parts. A shared allocation
    /// counts once.
    fn used(list: &RecipientList) -> usize {
        let mut shared = HashSet::new();
        let mut arc = |at: *const (), bytes: usize, texts: usize| match shared.insert(at) {
            true => allocation(bytes + 16) + texts,
            false => 0,
        };
        let mut sum = allocation(list.recipients.capacity() * size_of::<EnvelopeRecipient>());
        for recipient in &list.recipients {
            sum += allocation(recipient.address.capacity());
            if let Some(original) = &recipient.original {
                let texts = allocation(original.kind.capacity()) + allocation(original.address.capacity());
                sum += arc(Arc::as_ptr(original).cast(), size_of::<OriginalAddress>(), texts);
            }
        }
        sum += allocation(list.groups.capacity() * size_of::<RecipientGroup>());
        for group in &list.groups {
            sum += allocation(group.recipients.capacity() * 2);
            sum += match &group.next_hop {
                NextHop::Maildir(path) => arc(Arc::as_ptr(path).cast(), path.as_os_str().len(), 0),
                NextHop::Smtp(smtp) => {
                    arc(Arc::as_ptr(smtp).cast(), size_of::<Smtp>(), allocation(smtp.target.to_string().len()))
                }
                _ => 0,
            };
        }
        sum += table(&list.group_numbers) + table(&list.numbers);
        sum + list.numbers.keys().map(|(_, key)| allocation(key.len())).sum::<usize>()
    }

    fn router() -> Router {
        let users: Vec<String> = (0..40).map(|number| format!("u{number}")).collect();
        let file = |path: &Path| match path.file_name().and_then(OsStr::to_str) {
            Some("users") => Ok((users.join("\n") + "\npostmaster\n").into_bytes()),
            Some("aliases") => {
                Ok(format!("all: {}\nsome: u1, U2, all, x@käse.example, u1@bücher.example\n", users[..30].join(", "))
                    .into())
            }
            _ => Err(io::ErrorKind::NotFound.into()),
        };
        let text = "spool.directory = 'spool'\n[local]\ndomains = ['a.example', 'bücher.example']\nusers = 'users'\n\
                    aliases = 'aliases'\nmaildir = 'mail/{domain}/{user}'\n";
        let around = ConfigEnvironment { read: &file, ..ConfigEnvironment::of_process() };
        Config::parse(text, Path::new("relay.toml"), &around).unwrap_or_else(|error| panic!("{error}")).router
    }

    fn mailboxes(name: usize, domain: usize) -> Vec<String> {
        let own = |name: usize| format!("u{name} {domain}");
        match name {
            0..40 => vec![own(name)],
            40 => (0..30).map(own).collect(),
            41 => (0..30).map(own).chain(["x".to_owned(), "u1 1".to_owned()]).collect(),
            _ => vec!["x".to_owned()],
        }
    }

    fn spelled(name: usize, domain: usize, spelling: usize) -> String {
        let local_part = match (name, spelling % 3) {
            (0..40, 0) => format!("u{name}"),
            (0..40, 1) => format!("U{name}"),
            (0..40, _) => format!("\"u{name}\""),
            (40, _) => "ALL".to_owned(),
            (41, _) => "some".to_owned(),
            _ => return ["x@käse.example", "x@XN--kse-qla.example"][spelling % 2].to_owned(),
        };
        let domains = [["a.example", "A.Example"], ["BÜCHER.example", "xn--bcher-kva.example"]];
        format!("{local_part}@{}", domains[domain][spelling % 2])
    }

    fn is_notified(notify: Option<Notify>, event: Notify) -> bool {
        notify.map_or(event != Notify::SUCCESS, |notify| notify.wants(event))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn each_mailbox_is_one_recipient_and_all_of_its_memory_is_counted(
            named in prop::collection::vec((0..43_usize, 0..2_usize, 0..6_usize, 0..300_usize, prop::option::of(0..8_u8)), 1..60),
        ) {
            let router = router();
            let mut list = RecipientList::default();
            let mut expected: Vec<(String, usize, Vec<Option<Notify>>)> = Vec::new();
            for (name, domain, spelling, original_bytes, bits) in named {
                let events = [Notify::SUCCESS, Notify::FAILURE, Notify::DELAY];
                let notify = bits.map(|bits| {
                    let wanted = events.iter().enumerate().filter(|(bit, _)| bits & (1 << bit) != 0);
                    wanted.fold(Notify::NEVER, |sum, (_, event)| sum.and(*event))
                });
                let original = Arc::new(OriginalAddress { kind: b"rfc822".to_vec(), address: vec![b'x'; original_bytes] });
                let address = spelled(name, domain, spelling);
                let path = mailrun_smtp::Path::mailbox(address.as_bytes()).unwrap();
                let routed = router.route(Access::Trusted, &mailrun_smtp::Path::mailbox(b"").unwrap(), &path).unwrap();
                let members = match routed {
                    ResolvedRoute::Direct(next_hop) => vec![(address.as_str().into(), next_hop)],
                    ResolvedRoute::Alias(members) => members,
                };
                let limit = list.memory_bytes_with(&members, Some(&*original));
                for (address, next_hop) in members {
                    let is_known = list.contains(&router, address.as_bytes(), &next_hop);
                    let before = list.len();
                    let original = Some(Arc::clone(&original));
                    let address = address.into_string().into_bytes();
                    list.add(&router, EnvelopeRecipient { address, original, notify }, next_hop);
                    prop_assert_eq!(list.len() - before, usize::from(!is_known));
                }
                for mailbox in mailboxes(name, domain) {
                    match expected.iter_mut().find(|(known, ..)| *known == mailbox) {
                        Some((_, _, notifies)) => notifies.push(notify),
                        None => expected.push((mailbox, original_bytes, vec![notify])),
                    }
                }
                prop_assert!(used(&list) as u64 <= list.memory_bytes(), "{} of {}", used(&list), list.memory_bytes());
                prop_assert!(list.memory_bytes() <= limit);
            }
            prop_assert_eq!(list.len(), expected.len());
            let encoded_limit = list.encoded_bytes_with(&[], None);
            let (recipients, groups) = list.into_parts();
            let numbers: HashSet<u16> = groups.iter().flat_map(|group| group.recipients.iter().copied()).collect();
            prop_assert_eq!(numbers.len(), expected.len());
            for recipient in &recipients {
                let address = router.compared(&mailrun_smtp::Path::checked_before(&recipient.address));
                let (local_part, domain) = address.split_once('@').unwrap();
                let mailbox = match domain {
                    "xn--kse-qla.example" => local_part.to_owned(),
                    _ => format!("{local_part} {}", usize::from(domain != "a.example")),
                };
                let entry = expected.iter().find(|(expected, ..)| *expected == mailbox);
                let (_, original_bytes, notifies) = entry.expect("it was named");
                prop_assert_eq!(recipient.original.as_ref().unwrap().address.len(), *original_bytes, "the first one's");
                for event in [Notify::SUCCESS, Notify::FAILURE] {
                    let is_wanted = notifies.iter().any(|notify| is_notified(*notify, event));
                    prop_assert_eq!(is_notified(recipient.notify, event), is_wanted);
                }
            }
            let envelope = MessageEnvelope::local(b"", recipients);
            let encoded = envelope.encode().unwrap();
            let without = MessageEnvelope::local(b"", Vec::new()).encode().unwrap();
            prop_assert!(encoded.len() <= without.len() + 2 + encoded_limit, "the bound holds");
            let read_back = MessageEnvelope::decode(&encoded).unwrap();
            prop_assert!(read_back == envelope && read_back.memory_bytes() <= envelope.memory_bytes());
        }
    }
}
