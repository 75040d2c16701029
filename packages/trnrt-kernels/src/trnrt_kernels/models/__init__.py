"""Models served by trnrt, one folder per family; internal to the trnrt packages."""
