//! Another user of the node puts FIFOs and symbolic links where root opens files.
