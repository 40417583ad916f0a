//! Another user of the node holds locks, for as long as they like.
