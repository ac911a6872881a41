//! gdr-agent
