#![forbid(unsafe_code)]
//! The index by tokens: binary radix trees whose nodes know what their entries have in common.
//!
//! A key is read as bits: per token a one and the token's 32 bits, then zeros for ever. A branch stands where keys part, and
//! names that bit; a leaf holds the entries of one key. Keys are not stored again, and nothing lies between two branches:
//!
//! ```text
//! keys  a = [7 7 7 7]          branch at token 2, bit 30        climbing from c for the span [7 7 6 4]:
//!       b = [7 7 7 7 9]             |              |              c itself      shares 3 tokens
//!       c = [7 7 6 5]               c      branch at token 4,     the other     shares 2 tokens
//!                                          "is there a token?"    side
//!                                            |         |
//!                                            a         b
//! ```
//!
//! A lookup goes down to one leaf without looking at what lies between branches, compares the span with that leaf's key once, and
//! so knows the bit where the span parts from everything (`Spot`). Going up again, the other side of each branch shares
//! exactly as many tokens with the span as the branch names ([`Forest::climb`]). The cost is touching the span, and one step
//! per branch on the way.
//!
//! Each node has a [`Summary`] of the entries below, so a question about "all entries over there" is answered at once, or by a
//! search that enters only where the summary admits an answer.
//!
//! There is one tree per scope and taint: adapters and media must not mix, and a clean state is asked for alone.
//!
//! # Invariants
//! - A branch's bit lies behind its parent's; all keys below agree up to it, and part at it.
//! - A leaf holds at least one entry, oldest first; all have its key. No two leaves of a tree have the same key.
//! - A node's summary is that of its entries.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use super::entry::{EntryId, Scope};
use super::slab::{Slab, Slot};
use super::summary::Summary;

/// Number of a node.
pub(super) type NodeIndex = u32;
const NONE: NodeIndex = NodeIndex::MAX;

/// Bits of a place per token: the bit that says "there is a token", 32 bits of the token, and room.
const PLACE_BITS: u32 = 6;

/// A bit of a key: token index and bit in one number, ordered as the bits are.
type BitPlace = u64;

fn token_of(place: BitPlace) -> usize {
    (place >> PLACE_BITS) as usize
}

/// First bit of the token at `index`: whether there is one.
fn presence(index: usize) -> BitPlace {
    (index as BitPlace) << PLACE_BITS
}

/// The bit of a key, as the side of a branch.
fn side(key: &[u32], place: BitPlace) -> usize {
    let bit = (place & ((1 << PLACE_BITS) - 1)) as u32;
    match key.get(token_of(place)) {
        None => 0,
        Some(_) if bit == 0 => 1,
        Some(token) => (token >> (32 - bit) & 1) as usize,
    }
}

/// Tokens that two keys share.
pub(super) fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    // Whole runs compare as memory; the run that differs is looked at again.
    const RUN: usize = 256;
    let runs = a.chunks_exact(RUN).zip(b.chunks_exact(RUN)).take_while(|(a, b)| a == b).count() * RUN;
    let (a, b) = (a.get(runs..).unwrap_or(&[]), b.get(runs..).unwrap_or(&[]));
    runs + a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// First bit where two keys part; none when they are equal.
fn parting(a: &[u32], b: &[u32]) -> Option<BitPlace> {
    let common = common_prefix(a, b);
    match (a.get(common), b.get(common)) {
        (None, None) => None,
        (Some(a), Some(b)) => Some(presence(common) + 1 + BitPlace::from((a ^ b).leading_zeros())),
        _ => Some(presence(common)),
    }
}

/// Where a key stands in a tree: the leaf that shares most with it, and where it parts from that leaf and so from all.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spot {
    leaf: NodeIndex,
    parts_at: Option<BitPlace>,
    /// Tokens that the key shares with the leaf.
    pub(super) common: usize,
}

impl Spot {
    /// The leaf with exactly the key.
    pub(super) fn exact(&self) -> Option<NodeIndex> {
        self.parts_at.is_none().then_some(self.leaf)
    }
}

#[derive(Debug)]
enum Kind {
    Leaf(SmallVec<[Slot; 2]>),
    Branch { place: BitPlace, sides: [NodeIndex; 2] },
}

#[derive(Debug)]
struct Node {
    parent: NodeIndex,
    summary: Summary,
    kind: Kind,
}

/// Trees by scope and taint, over one table of nodes.
#[derive(Debug, Default)]
pub(super) struct Forest {
    roots: BTreeMap<(Scope, u64), NodeIndex>,
    nodes: Vec<Node>,
    vacant: Vec<NodeIndex>,
}

impl Forest {
    /// The trees of a scope: taint and root.
    pub(super) fn trees(&self, scope: &Scope) -> impl Iterator<Item = (u64, NodeIndex)> {
        self.roots.range((*scope, 0)..=(*scope, u64::MAX)).map(|(&(_, taint), &root)| (taint, root))
    }

    /// The tree of a scope and taint.
    pub(super) fn tree(&self, scope: &Scope, taint: u64) -> Option<NodeIndex> {
        self.roots.get(&(*scope, taint)).copied()
    }

    pub(super) fn summary(&self, node: NodeIndex) -> &Summary {
        &self.nodes[node as usize].summary
    }

    /// The two sides of a branch; none for a leaf.
    pub(super) fn sides(&self, node: NodeIndex) -> Option<[NodeIndex; 2]> {
        match self.nodes[node as usize].kind {
            Kind::Leaf(_) => None,
            Kind::Branch { sides, .. } => Some(sides),
        }
    }

    /// The entries of a leaf, oldest first; none of a branch.
    pub(super) fn entries(&self, node: NodeIndex) -> &[Slot] {
        match &self.nodes[node as usize].kind {
            Kind::Leaf(slots) => slots,
            Kind::Branch { .. } => &[],
        }
    }

    /// Finds where `key` stands in the tree of `root`.
    pub(super) fn locate(&self, root: NodeIndex, key: &[u32], slab: &Slab) -> Spot {
        let mut node = root;
        while let Kind::Branch { place, sides } = self.nodes[node as usize].kind {
            node = sides[side(key, place)];
        }
        let leaf_key = self.entries(node).first().map_or(&[][..], |&slot| &*slab.entry(slot).tokens);
        let parts_at = parting(key, leaf_key);
        Spot { leaf: node, parts_at, common: parts_at.map_or(key.len(), token_of) }
    }

    /// An entry of the leaf of a spot.
    pub(super) fn member(&self, spot: &Spot, slab: &Slab) -> Option<EntryId> {
        self.entries(spot.leaf).first().map(|&slot| slab.entry(slot).id)
    }

    /// Where the key of an entry stands in its own tree.
    pub(super) fn own_spot(&self, leaf: NodeIndex, key: &[u32]) -> Spot {
        Spot { leaf, parts_at: None, common: key.len() }
    }

    /// All entries of the tree, by what they share with the key of `spot`: parts of the tree and shared tokens, most first.
    pub(super) fn climb(&self, spot: &Spot) -> Climb<'_> {
        let place = spot.parts_at.unwrap_or(BitPlace::MAX);
        let from = self.ancestor(spot.leaf, |branch| branch > place);
        Climb { forest: self, next: Some((from, spot.common)), from }
    }

    /// The part of the tree with the entries that begin with the first `len` tokens of the key of `spot`.
    pub(super) fn beginning_with(&self, spot: &Spot, len: usize) -> Option<NodeIndex> {
        (spot.common >= len).then(|| self.ancestor(spot.leaf, |branch| branch >= presence(len)))
    }

    /// The highest node above `node`, itself included, that is reached over branches of which `holds` is true.
    fn ancestor(&self, mut node: NodeIndex, holds: impl Fn(BitPlace) -> bool) -> NodeIndex {
        while let Some((parent, place)) = self.branch_above(node)
            && holds(place)
        {
            node = parent;
        }
        node
    }

    fn branch_above(&self, node: NodeIndex) -> Option<(NodeIndex, BitPlace)> {
        let parent = self.nodes[node as usize].parent;
        match self.nodes.get(parent as usize)?.kind {
            Kind::Branch { place, .. } => Some((parent, place)),
            Kind::Leaf(_) => None,
        }
    }

    /// Adds an entry; `spot` is where its key stands, or none when its tree does not exist yet. Answers its leaf.
    pub(super) fn insert(&mut self, spot: Option<Spot>, slot: Slot, slab: &Slab) -> NodeIndex {
        let entry = slab.entry(slot);
        let tree = (entry.scope, entry.taint);
        let Some(Spot { leaf, parts_at, .. }) = spot else {
            let leaf = self.add(Kind::Leaf(SmallVec::from_slice(&[slot])));
            self.roots.insert(tree, leaf);
            self.refresh(leaf, slab);
            return leaf;
        };
        let Some(place) = parts_at else {
            if let Kind::Leaf(slots) = &mut self.nodes[leaf as usize].kind {
                slots.push(slot);
            }
            self.refresh(leaf, slab);
            return leaf;
        };
        let below = self.ancestor(leaf, |branch| branch > place);
        let above = self.nodes[below as usize].parent;
        let fresh = self.add(Kind::Leaf(SmallVec::from_slice(&[slot])));
        let mut sides = [below; 2];
        sides[side(&entry.tokens, place)] = fresh;
        let branch = self.add(Kind::Branch { place, sides });
        self.nodes[fresh as usize].parent = branch;
        self.nodes[below as usize].parent = branch;
        self.replace(above, below, branch, tree);
        self.refresh(fresh, slab);
        fresh
    }

    /// Takes an entry out of its leaf; `slab` still has it.
    pub(super) fn remove(&mut self, leaf: NodeIndex, slot: Slot, slab: &Slab) {
        if let Kind::Leaf(slots) = &mut self.nodes[leaf as usize].kind {
            slots.retain(|other| *other != slot);
            if !slots.is_empty() {
                return self.refresh(leaf, slab);
            }
        }
        let entry = slab.entry(slot);
        let tree = (entry.scope, entry.taint);
        let branch = self.nodes[leaf as usize].parent;
        self.vacant.push(leaf);
        let Some(&Node { kind: Kind::Branch { sides, .. }, parent: above, .. }) = self.nodes.get(branch as usize)
        else {
            self.roots.remove(&tree);
            return;
        };
        let other = if sides[0] == leaf { sides[1] } else { sides[0] };
        self.vacant.push(branch);
        self.replace(above, branch, other, tree);
        if above != NONE {
            self.refresh(above, slab);
        }
    }

    /// Makes the summaries of a node and of those above true again.
    pub(super) fn refresh(&mut self, mut node: NodeIndex, slab: &Slab) {
        while let Some(at) = self.nodes.get(node as usize) {
            let summary = match &at.kind {
                Kind::Leaf(slots) => slots.iter().map(|&slot| Summary::of(slab.entry(slot))).collect(),
                Kind::Branch { sides, .. } => sides.iter().map(|&below| *self.summary(below)).collect(),
            };
            if summary == at.summary {
                return;
            }
            let at = &mut self.nodes[node as usize];
            at.summary = summary;
            node = at.parent;
        }
    }

    fn add(&mut self, kind: Kind) -> NodeIndex {
        let node = Node { parent: NONE, summary: Summary::default(), kind };
        match self.vacant.pop() {
            Some(index) => {
                self.nodes[index as usize] = node;
                index
            }
            None => {
                self.nodes.push(node);
                (self.nodes.len() - 1) as NodeIndex
            }
        }
    }

    /// Puts `new` where `old` was below `above`, or at the root of the tree.
    fn replace(&mut self, above: NodeIndex, old: NodeIndex, new: NodeIndex, tree: (Scope, u64)) {
        self.nodes[new as usize].parent = above;
        match self.nodes.get_mut(above as usize) {
            Some(Node { kind: Kind::Branch { sides, .. }, .. }) => {
                sides.iter_mut().filter(|below| **below == old).for_each(|below| *below = new);
            }
            _ => {
                self.roots.insert(tree, new);
            }
        }
    }

    /// Walks all trees and checks the invariants; answers the number of entries.
    pub(super) fn audit(&self, slab: &Slab) -> Result<usize, String> {
        let mut entries = 0;
        let mut nodes = 0;
        for (&(scope, taint), &root) in &self.roots {
            if self.nodes[root as usize].parent != NONE {
                return Err("a root has a parent".to_owned());
            }
            let mut open = vec![root];
            while let Some(node) = open.pop() {
                nodes += 1;
                let at = &self.nodes[node as usize];
                let summary: Summary = match &at.kind {
                    Kind::Leaf(slots) => {
                        let key = slots.first().map(|&slot| &*slab.entry(slot).tokens).ok_or("a leaf is empty")?;
                        entries += slots.len();
                        let belongs = |&slot: &Slot| {
                            let entry = slab.entry(slot);
                            *entry.tokens == *key
                                && (entry.scope, entry.taint) == (scope, taint)
                                && slab.get(entry.id).is_some_and(|stored| stored.leaf == node)
                        };
                        if !slots.iter().all(belongs) || !slots.is_sorted_by_key(|&slot| slab.entry(slot).id) {
                            return Err(format!("leaf {node} holds an entry that does not belong there"));
                        }
                        let spot = self.locate(root, key, slab);
                        if spot.exact() != Some(node) {
                            return Err(format!("leaf {node} is not found by its key"));
                        }
                        slots.iter().map(|&slot| Summary::of(slab.entry(slot))).collect()
                    }
                    Kind::Branch { place, sides } => {
                        for &below in sides {
                            let child = &self.nodes[below as usize];
                            let behind = !matches!(child.kind, Kind::Branch { place: p, .. } if p <= *place);
                            if child.parent != node || !behind {
                                return Err(format!("node {below} does not belong under {node}"));
                            }
                            open.push(below);
                        }
                        sides.iter().map(|&below| *self.summary(below)).collect()
                    }
                };
                if summary != at.summary {
                    return Err(format!("summary of node {node} is not that of its entries"));
                }
            }
        }
        if nodes + self.vacant.len() != self.nodes.len() {
            return Err(format!("{nodes} nodes and {} vacant of {}", self.vacant.len(), self.nodes.len()));
        }
        Ok(entries)
    }
}

/// Parts of a tree and the tokens that their entries share with a key; see [`Forest::climb`].
#[derive(Debug)]
pub(super) struct Climb<'f> {
    forest: &'f Forest,
    next: Option<(NodeIndex, usize)>,
    from: NodeIndex,
}

impl Iterator for Climb<'_> {
    type Item = (NodeIndex, usize);

    fn next(&mut self) -> Option<Self::Item> {
        let part = self.next.take()?;
        if let Some((branch, place)) = self.forest.branch_above(self.from)
            && let Some([zero, one]) = self.forest.sides(branch)
        {
            let other = if zero == self.from { one } else { zero };
            self.from = branch;
            self.next = Some((other, token_of(place)));
        }
        Some(part)
    }
}
