"""Known errors of Google's services and of training programs: who says them, how they are recognized, their fixes."""
