"""What the target would accept: the truth about drafts."""
