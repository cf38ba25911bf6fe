"""Files to and from storage by signed URLs. Read `transfer` first."""
